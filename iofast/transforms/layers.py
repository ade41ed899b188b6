"""The layers of a policy: named operations, one of which is drawn for each image, with a random strength."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from iofast.transforms.transform import Column, DrawnImages, Program, numbers
from iofast.transforms.warps import Matrix, turned, warp_by
from iofast.work import NUMBERS, Step

Sizes = tuple[Column, Column]  # widths and heights of images

_SINGLE = {  # operations of one step and one number
    "Brightness": Step.BRIGHTNESS,
    "Color": Step.SATURATION,
    "Contrast": Step.CONTRAST,
    "Sharpness": Step.SHARPNESS,
    "Posterize": Step.POSTERIZE,
    "Solarize": Step.SOLARIZE,
    "AutoContrast": Step.AUTOCONTRAST,
    "Equalize": Step.EQUALIZE,
    "Invert": Step.SOLARIZE,  # from 0 on
    "Identity": Step.NOTHING,
}
_ROUND = {"round": np.rint, "up": np.ceil, "down": np.floor}


@dataclass(frozen=True, slots=True)
class Range:
    """An operation's number at strengths of 0 to 1: evenly from `start` to `stop`.

    `signed`: with probability 1/2 mirrored at `start`. `of`: the number is a share of the image's width or height.
    `rounded`: to even, up or down (towards `start` if signed). `least`: the least result.
    """

    start: float
    stop: float
    signed: bool = False
    of: Literal["", "width", "height"] = ""
    rounded: Literal["", "round", "up", "down"] = ""
    least: float | None = None

    def number(self, strengths: Column, sides: Column, sizes: Sizes) -> Column:
        """The number of each image; `sides`, from 0 to 1, chooses the side if it is signed."""
        value = self.start + (self.stop - self.start) * strengths
        if self.of:
            value = value * sizes[self.of == "height"]
        if self.rounded:
            value = _ROUND[self.rounded](value)
        if self.signed:
            value = np.where(sides < 0.5, 2 * self.start - value, value)
        return value if self.least is None else np.maximum(value, self.least)


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

    def drawn(self, u: Column, v: Column) -> Column:
        """Strengths from uniform numbers; `v` (N, 2) gives the normal deviation, by Box and Muller."""
        if self.bins > 1:
            u = np.floor(u * self.bins) / (self.bins - 1)
        value = self.low + (self.high - self.low) * u
        if self.std:
            value = value + self.std * np.sqrt(-2 * np.log(1 - v[:, 0])) * np.cos(2 * np.pi * v[:, 1])
        return np.clip(value, 0, self.most)


@dataclass(frozen=True, slots=True)
class Named:
    """One operation of a policy, done with probability `p`; `range` is None for operations without a number."""

    name: str
    range: Range | None
    strength: Strength
    p: float = 1.0

    def number(self, u: Column, sizes: Sizes) -> Column:
        """The operation's number for each image, from the uniform numbers `u` of `Layer.draw`."""
        if self.range is None:
            return np.zeros(len(u))
        return self.range.number(self.strength.drawn(u[:, 1], u[:, 3:]), u[:, 2], sizes)


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

    def draw(self, policy: Any, number: int, images: DrawnImages, name: str) -> Program:
        """The step of each image in layer `number` of a policy, whose warps have its `interpolation` and `fill`.

        Lanes: whether, how strong, to which side, and two for the normal deviation.
        """
        which = self._which(number, images, name)
        u = images.draw.uniform(f"{name} {number}", 5)
        codes, of_codes = np.zeros(len(images), np.int8), np.zeros((len(images), NUMBERS), np.float32)
        for index in np.unique(which).tolist():
            entry = self.entries[index]
            rows = np.flatnonzero((which == index) & (u[:, 0] < entry.p))
            sizes = images.widths[rows], images.heights[rows]
            step, of_codes[rows] = step_of(policy, entry.name, entry.number(u[rows], sizes), sizes)
            codes[rows] = step
        return codes[:, None], of_codes[:, None]

    def _which(self, number: int, images: DrawnImages, name: str) -> NDArray[np.int64]:
        """The entry that each image gets.

        With weights, each entry draws an exponential waiting time with its weight as the rate. Layer i gets the entry
        with the i-th shortest time: weighted sampling without replacement (Efraimidis and Spirakis, 2006).
        """
        if self.choice:
            return images.draw.integers(f"{name} {self.choice}", len(self.entries))
        if self.weights is None:
            return images.draw.integers(f"{name} {number} which", len(self.entries))
        waits = -np.log(1 - images.draw.uniform(f"{name} which", len(self.entries))) / np.array(self.weights)
        return np.argsort(waits, axis=1, kind="stable")[:, number].astype(np.int64)


def step_of(policy: Any, name: str, value: Column, sizes: Sizes) -> tuple[Step, NDArray[np.float32]]:
    """The step of an operation with the number `value`, and its numbers (N, NUMBERS)."""
    if name in _SINGLE:
        return _SINGLE[name], numbers(value)
    if name == "SolarizeAdd":
        return Step.ADD_BELOW, numbers(np.full_like(value, 128), value)
    return warp_by(policy, _matrix(name, value, sizes), len(value))


def _matrix(name: str, value: Column, sizes: Sizes) -> Matrix:
    match name:
        case "ShearX":
            return 1, value, 0, 0, 1, 0
        case "ShearY":
            return 1, 0, 0, value, 1, 0
        case "TranslateX":
            return 1, 0, -value, 0, 1, 0
        case "TranslateY":
            return 1, 0, 0, 0, 1, -value
    assert name == "Rotate"
    return turned(value, sizes[0] / 2, sizes[1] / 2)
