"""How strong an operation of a policy is, and which one is taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Range:
    """What an operation's number is at strengths of 0 to 1: from `start` evenly to `stop`.

    `signed`: as often as far on the other side of `start`. `of`: the number is a share of the image's width or height.
    `whole`: how it is rounded, to even, up or down (towards `start` where it is signed).
    """

    start: float
    stop: float
    signed: bool = False
    of: Literal["", "width", "height"] = ""
    whole: Literal["", "round", "up", "down"] = ""
    least: float | None = None


@dataclass(frozen=True, slots=True)
class Strength:
    """Drawn evenly from `low` to `high`, of `bins` values where there are such, with a normal deviation `std`; then cut
    to 0 to `most`."""

    low: float
    high: float
    bins: int = 0
    std: float = 0.0
    most: float = 1.0

    @classmethod
    def fixed(cls, strength: float) -> Strength:
        return cls(strength, strength)


@dataclass(frozen=True, slots=True)
class Named:
    """One operation of a policy, done with probability `p`; `range` is None for those that have no number."""

    name: str
    range: Range | None
    strength: Strength
    p: float = 1.0


@dataclass(frozen=True, slots=True)
class Layer:
    """One of `entries` for each image, each as likely as the others, or by `weights`: then no two layers of a policy
    take the same. Layers of one `choice` take the same place of their entries."""

    entries: tuple[Named, ...]
    weights: tuple[float, ...] | None = None
    choice: str = ""

    @classmethod
    def of(cls, space: Mapping[str, Range | None], strength: Strength) -> Layer:
        return cls(tuple(Named(name, each, strength) for name, each in space.items()))
