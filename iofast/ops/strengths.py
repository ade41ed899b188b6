"""The strengths of a policy's operations, and how a policy chooses among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Range:
    """An operation's number at strengths of 0 to 1: evenly from `start` to `stop`.

    `signed`: with probability 1/2 mirrored at `start`. `of`: the number is a share of the image's width or height.
    `whole`: the rounding, to even, up or down (towards `start` if signed). `least`: the least result.
    """

    start: float
    stop: float
    signed: bool = False
    of: Literal["", "width", "height"] = ""
    whole: Literal["", "round", "up", "down"] = ""
    least: float | None = None


@dataclass(frozen=True, slots=True)
class Strength:
    """A strength drawn evenly from `low` to `high`, plus a normal deviation `std`, then clipped to 0 to `most`.

    With `bins` it is one of as many values.
    """

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
    """One operation of a policy, done with probability `p`; `range` is None for operations without a number."""

    name: str
    range: Range | None
    strength: Strength
    p: float = 1.0


Space = Mapping[str, Range | None]  # operations by name


@dataclass(frozen=True, slots=True)
class Layer:
    """One of `entries` for each image, all equally likely, or by `weights`.

    With weights no two layers of a policy choose the same entry. Layers with the same `choice` choose entries of the
    same index.
    """

    entries: tuple[Named, ...]
    weights: tuple[float, ...] | None = None
    choice: str = ""

    @classmethod
    def of(cls, space: Space, strength: Strength) -> Layer:
        return cls(tuple(Named(name, each, strength) for name, each in space.items()))
