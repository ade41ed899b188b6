"""What a change gained: two outputs of `iofast monitor --json`, side by side, with their noise."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iofast.errors import OptionError, SourceError, unreadable
from iofast.monitor.render import wording

_SURE = 2.0  # standard errors


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over intervals and its standard error; 0 of a single interval."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows of a table, and the change of the rate: 0.25 is a quarter faster; None if a file has no rates."""

    rows: list[tuple[str, ...]]
    change: Mean | None

    def slower(self, share: float) -> bool:
        """Whether the rate fell by more than `share`, beyond its noise."""
        return self.change is not None and self.change.value + _SURE * self.change.error < -share

    def markdown(self) -> str:
        """The table, and the change in a sentence."""
        table = [("", "before", "after", "change"), ("---", "---:", "---:", "---:"), *self.rows]
        lines = [f"| {' | '.join(row)} |" for row in table]
        return "\n".join([*lines, "", self._sentence()])

    def _sentence(self) -> str:
        if self.change is None:
            return "No rate to compare: no loader reported its images (FastLoader, or watch())."
        noise = _SURE * self.change.error
        if abs(self.change.value) <= noise:
            return f"No change beyond the noise: {self.change.value:+.1%} ± {noise:.1%}."
        word = "faster" if self.change.value > 0 else "slower"
        return f"{abs(self.change.value):.1%} {word} (± {noise:.1%})."


def compare(before: Path, after: Path) -> Comparison:
    """Compare two files of `iofast monitor --json`. Raises `SourceError` if one cannot be read or is not one."""
    files = _read(before), _read(after)
    (was, stall), (now, later) = (_judged(each[-1]) for each in files)
    rows: list[tuple[str, ...]] = [("verdict", was, now, ""), ("stall", stall, later, "")]
    change = None
    for name, (title, *_) in wording.FIGURES.items():
        means = [mean for each in files if (mean := _mean(each, name)) is not None]
        if len(means) == 2:
            found = _change(*means)
            change = found if name == "images_per_s" else change
            shown = [
                f"{wording.figure(name, each.value)} ± {wording.figure(name, _SURE * each.error)}" for each in means
            ]
            rows.append((title, *shown, "" if found is None else f"{found.value:+.1%}"))
    return Comparison(rows, change)


def share_of(text: str) -> float:
    """The share in `5%` or `0.05`. Raises `OptionError`."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        raise OptionError(f"--fail-slower must be a share such as 5%, found {text!r}")
    return share


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        found = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise SourceError(f"expected the output of iofast monitor --json, found other text ({path})") from error
    if not found or not all(isinstance(each, dict) and "figures" in each for each in found):
        raise SourceError(f"expected the output of iofast monitor --json, found no interval of it ({path})")
    return found


def _judged(interval: dict[str, Any]) -> tuple[str, str]:
    """Its verdict and its stall in words."""
    stall, words = interval.get("stall"), filter(None, (interval["verdict"], interval.get("cause")))
    return ": ".join(words), "" if stall is None else wording.bounds(stall["low"], stall["high"])


def _mean(intervals: Sequence[dict[str, Any]], name: str) -> Mean | None:
    known = [float(value) for each in intervals if (value := each["figures"].get(name)) is not None]
    if not known:
        return None
    error = statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else 0.0
    return Mean(statistics.fmean(known), error)


def _change(old: Mean, new: Mean) -> Mean | None:
    """The relative change, with the errors of both means."""
    if old.value <= 0:
        return None
    ratio = new.value / old.value
    parts = (each.error / each.value for each in (old, new) if each.value)
    return Mean(ratio - 1, ratio * math.hypot(*parts))
