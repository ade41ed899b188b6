"""The random part of policies: which operation, whether, how strong, and to which side."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from iofast.ops.policies import Policy
from iofast.ops.strengths import Layer, Named, Strength
from iofast.transforms.geometry import Column
from iofast.transforms.programs import DrawnImages, Program, in_a_row, numbers
from iofast.transforms.warps import Matrix, turned, warp_by
from iofast.work import NUMBERS, Step

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


def policy(op: Policy, images: DrawnImages, name: str) -> Program:
    """The steps of one policy."""
    programs = [
        _layer(op, layer, images, f"{name} {place}", _chosen(layer, place, images, name))
        for place, layer in enumerate(_described(op))
    ]
    return in_a_row(programs, len(images))


@lru_cache(maxsize=64)
def _described(op: Policy) -> tuple[Layer, ...]:
    """`op.layers`; they take as long to make as to draw."""
    return op.layers


def _chosen(layer: Layer, place: int, images: DrawnImages, name: str) -> NDArray[np.int64]:
    """The entry of a layer that each image gets.

    With weights, each entry draws an exponential waiting time with its weight as the rate. Layer i gets the entry with
    the i-th shortest time: weighted sampling without replacement (Efraimidis and Spirakis, 2006).
    """
    if layer.choice:
        return images.draw.integers(f"{name} {layer.choice}", len(layer.entries))
    if layer.weights is None:
        return images.draw.integers(f"{name} {place} which", len(layer.entries))
    waits = -np.log(1 - images.draw.uniform(f"{name} which", len(layer.entries))) / np.array(layer.weights)
    return np.argsort(waits, axis=1, kind="stable")[:, place].astype(np.int64)


def _layer(op: Policy, layer: Layer, images: DrawnImages, name: str, chosen: NDArray[np.int64]) -> Program:
    """Lanes of `name`: whether, how strong, to which side, and two for the normal deviation."""
    u = images.draw.uniform(name, 5)
    codes, own = np.zeros(len(images), np.int8), np.zeros((len(images), NUMBERS), np.float32)
    for place in np.unique(chosen).tolist():
        entry = layer.entries[place]
        rows = np.flatnonzero((chosen == place) & (u[:, 0] < entry.p))
        sizes = images.widths[rows], images.heights[rows]
        step, own[rows] = _step(op, entry.name, _value(entry, u[rows], sizes), sizes)
        codes[rows] = step
    return codes[:, None], own[:, None]


def _value(entry: Named, u: Column, sizes: tuple[Column, Column]) -> Column:
    """The operation's number for each image."""
    range = entry.range
    if range is None:
        return np.zeros(len(u))
    value = range.start + (range.stop - range.start) * _strength(entry.strength, u[:, 1], u[:, 3:])
    if range.of:
        value = value * sizes[range.of == "height"]
    if range.whole:
        value = {"round": np.rint, "up": np.ceil, "down": np.floor}[range.whole](value)
    if range.signed:
        value = np.where(u[:, 2] < 0.5, 2 * range.start - value, value)
    return value if range.least is None else np.maximum(value, range.least)


def _strength(strength: Strength, u: Column, v: Column) -> Column:
    """Strengths from uniform numbers; `v` gives the normal deviation, by Box and Muller."""
    if strength.bins > 1:
        u = np.floor(u * strength.bins) / (strength.bins - 1)
    value = strength.low + (strength.high - strength.low) * u
    if strength.std:
        value = value + strength.std * np.sqrt(-2 * np.log(1 - v[:, 0])) * np.cos(2 * np.pi * v[:, 1])
    return np.clip(value, 0, strength.most)


def _step(op: Policy, name: str, value: Column, sizes: tuple[Column, Column]) -> tuple[Step, NDArray[np.float32]]:
    """The step of an operation, and its numbers (N, NUMBERS)."""
    if name in _SINGLE:
        return _SINGLE[name], numbers(value)
    if name == "SolarizeAdd":
        return Step.ADD_BELOW, numbers(np.full_like(value, 128), value)
    return warp_by(op, _matrix(name, value, sizes), len(value))


def _matrix(name: str, value: Column, sizes: tuple[Column, Column]) -> Matrix:
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
