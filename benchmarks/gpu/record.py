"""Figures and what could not be measured, written line by line, so that an interrupted part loses nothing."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One number; `least` and `most` are its goals, if any."""

    name: str
    value: float
    unit: str
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goals are met; None without one."""
        if self.least is None and self.most is None:
            return None
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    @property
    def asked(self) -> str:
        """The goals in words."""
        words = [("at least", self.least), ("at most", self.most)]
        return ", ".join(f"{word} {written(value, self.unit)}" for word, value in words if value is not None)


@dataclass(frozen=True)
class Lack:
    """Something that could not be measured, and why."""

    what: str
    why: str


Record = Figure | Lack


@dataclass(frozen=True)
class Outcome:
    """The result of a part; `ended`: how it ended, if not by itself."""

    figures: tuple[Figure, ...] = ()
    lacks: tuple[Lack, ...] = ()
    seconds: float = 0.0
    ended: str = ""


def written(value: float, unit: str) -> str:
    """A number with its unit: shares as per cent, large numbers whole, small ones with three digits."""
    if unit == "%":
        return f"{value:.2%}"
    digits = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{digits}{unit}" if unit == "×" else f"{digits} {unit}".rstrip()


def append(path: Path, record: Record) -> None:
    """Append a record to the file of a part; it survives whatever happens afterwards."""
    with path.open("a") as file:
        file.write(json.dumps({type(record).__name__: asdict(record)}) + "\n")


def read(path: Path) -> tuple[tuple[Figure, ...], tuple[Lack, ...]]:
    """The records of a part, without a last line that was cut off."""
    figures: list[Figure] = []
    lacks: list[Lack] = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            said: dict[str, dict[str, Any]] = json.loads(line)
        except ValueError:
            continue
        if "Figure" in said:
            figures.append(Figure(**said["Figure"]))
        else:
            lacks.append(Lack(**said["Lack"]))
    return tuple(figures), tuple(lacks)
