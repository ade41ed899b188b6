"""What is printed or written: lines, JSON with an object for each interval of a job, what two of them show, a page.

docs/monitor.md has the schema of the objects.
"""

import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import Enum
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from iofast import owned
from iofast.errors import OptionError, SourceError, TargetError, because, unreadable
from iofast.monitor.findings import Bound, Cause
from iofast.monitor.render import wording
from iofast.monitor.render.layout import WIDTH, whole
from iofast.monitor.render.moment import Moment, MomentView
from iofast.monitor.render.wording import plain

EVERY_S = 30.0  # between lines about a job whose verdict does not change
_SURE = 2.0  # standard errors of a change that is no noise
SCHEMA = 2  # a new field keeps the number; a field removed or redefined raises it
# The browser loads and runs nothing. A dark page is the light one with its brightness inverted.
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>iofast monitor</title><style>{stylesheet}
html {{ background: {background}; color: {foreground}; }}
pre {{ font: 13px/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }}
@media (prefers-color-scheme: dark) {{ html {{ filter: invert(0.9) hue-rotate(180deg); }} }}
</style></head><body><pre>{code}</pre></body></html>
"""


class PlainLines(MomentView):
    """Prints a line when a verdict changes, now and then, and at the end of each job or of the monitor."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._printed: dict[tuple[int, int], tuple[float, Bound, Cause | None]] = {}
        self._message = ""

    def update(self, moment: Moment) -> None:
        """Print the job's verdict if it is new or old enough."""
        key, now = (moment.job.pid, moment.job.start_time), moment.snapshot.time_s
        judged = (moment.verdict.bound, moment.verdict.cause)
        if moment.ended:
            self._printed.pop(key, None)
            self._print(f"ended: {wording.summary(moment)}")
            return
        last = self._printed.get(key)
        if last is not None and last[1:] == judged and now - last[0] < EVERY_S:
            return
        self._message = ""
        self._printed[key] = (now, *judged)
        for note in moment.snapshot.notes if last is None else ():
            self._print(f"note: {plain(note)}")
        self._print(wording.summary(moment))

    def waiting(self, message: str) -> None:
        """Print the message once until a job is watched."""
        if message != self._message:
            self._message = message
            self._print(plain(message))

    def close(self, moments: Sequence[Moment]) -> None:
        """Print the last verdict of each job that goes on."""
        for moment in moments:
            if not moment.ended:
                self._print(f"last: {wording.summary(moment)}")

    def _print(self, line: str) -> None:
        print(f"iofast monitor: {line}", file=self._out, flush=True)


def to_json(moment: Moment) -> dict[str, Any]:
    """A moment as plain data: dictionaries, lists, strings, numbers, None."""
    snapshot, verdict = moment.snapshot, moment.verdict
    job, judged = asdict(moment.job), asdict(verdict)
    del job["start_time"]
    found = {
        "schema": SCHEMA,
        "time": time.time(),
        **job,
        "verdict": judged.pop("bound"),
        **judged,
        "run": None if moment.history.sums is None else asdict(moment.history.sums),
        "interval": snapshot.seconds,
        "figures": asdict(moment.figures),
        "system": asdict(snapshot.system),
        "devices": [asdict(device) for device in snapshot.devices],
        "loaders": [asdict(loader) for loader in snapshot.loaders],
        "notes": snapshot.notes,
    }
    data = {name: _data(value) for name, value in found.items()}
    for advice, printed in zip(verdict.advice, data["advice"], strict=True):
        printed["change"] = "\n".join(wording.change(advice))  # lines to paste, each made plain
    return data


def _data(value: Any) -> Any:
    """`value` as JSON data, with texts made plain: `jq -r` prints them on a terminal as they are."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {_data(key): _data(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_data(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return None  # JSON has no infinity and no NaN
    return value


class JsonLines(MomentView):
    """One object per line and interval."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def update(self, moment: Moment) -> None:
        """Print one object."""
        print(json.dumps(to_json(moment), allow_nan=False), file=self._out, flush=True)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over intervals and its standard error; 0 of a single interval."""

    value: float
    error: float


def compare(before: Path, after: Path) -> tuple[str, Mean | None]:
    """Compare two files of `iofast monitor --json`: a table in Markdown, and the change of the rate.

    The change is 0.25 for a quarter faster, and None if a file has no rates. Raises `SourceError` if a file cannot be
    read or is none of these.
    """
    files = _read(before), _read(after)
    (was, stall), (now, later) = (_judged(each[-1]) for each in files)
    rows: list[tuple[str, ...]] = [("", "before", "after", "change"), ("---", "---:", "---:", "---:")]
    rows += [("verdict", was, now, ""), ("stall", stall, later, "")]
    rate = None
    for name, (title, _, unit) in wording.FIGURES.items():
        means = [mean for each in files if (mean := _mean(each, name)) is not None]
        if len(means) == 2:
            found = _change(*means)
            rate = found if name == "images_per_s" else rate
            texts = [[wording.figure(name, value) for value in (each.value, _SURE * each.error)] for each in means]
            shown = [f"{value.removesuffix(unit)} ± {noise}" for value, noise in texts]
            rows.append((title, *shown, "" if found is None else f"{found.value:+.1%}"))
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", _sentence(rate)]), rate


def _sentence(rate: Mean | None) -> str:
    if rate is None:
        return "No rate to compare: no loader reported its images (FastLoader, or watch())."
    noise = _SURE * rate.error
    if abs(rate.value) <= noise:
        return f"No change beyond the noise: {rate.value:+.1%} ± {noise:.1%}."
    return f"{abs(rate.value):.1%} {'faster' if rate.value > 0 else 'slower'} (± {noise:.1%})."


def slower(rate: Mean | None, share: float) -> bool:
    """Whether the rate fell by more than `share`, beyond its noise."""
    return rate is not None and rate.value + _SURE * rate.error < -share


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


class PageReport(MomentView):
    """Writes the page when watching ends. Raises TargetError at the start if the path is not writable."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        folder = self._path.parent
        if self._path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise TargetError(f"--report cannot write {path}: expected a file in a writable folder")

    def close(self, moments: Sequence[Moment]) -> None:
        """Write the page to a temporary name and rename it."""
        try:
            with owned.writing(self._path) as file:
                file.write(html(moments, datetime.now(UTC)).encode())
        except OSError as error:
            raise TargetError(f"--report cannot write {self._path}: {because(error)}") from error


def html(moments: Sequence[Moment], when: datetime) -> str:
    """The page."""
    console = Console(file=StringIO(), record=True, width=WIDTH, highlight=False, markup=False, emoji=False)
    date = when.strftime("%Y-%m-%d %H:%M UTC")
    console.print(Text.assemble(("Is this training waiting for its data?", "bold"), f"  iofast monitor, {date}"))
    for moment in moments:
        history = moment.history
        watched = f"watched for {wording.clock(history.seconds)} in {history.intervals:,} intervals"
        for line in (Text(f"\n{watched}", "dim"), *whole(moment)):
            console.print(line, soft_wrap=True)
    if not moments:
        console.print("No training process was seen.")
    return console.export_html(code_format=_PAGE)
