"""Programs of steps as columns, for N images at once: codes (N, S) and numbers (N, S, NUMBERS)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iofast.choices import Draw
from iofast.transforms.geometry import Column
from iofast.work import NUMBERS, Step

Program = tuple[NDArray[np.int8], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class DrawnImages:
    """The random numbers of N images, and their sizes after the crop (pixels)."""

    draw: Draw
    widths: Column
    heights: Column

    def __len__(self) -> int:
        return len(self.draw)


def numbers(*values: Column) -> NDArray[np.float32]:
    """The numbers of steps, from columns of equal shape; the others are 0."""
    own = np.zeros((*values[0].shape, NUMBERS), np.float32)
    for place, column in enumerate(values):
        own[..., place] = column
    return own


def one(step: Step, done: NDArray[np.bool_], own: NDArray[np.float32]) -> Program:
    """One step, in the images where it is `done`; its numbers are (N, NUMBERS)."""
    return (done * np.int8(step)).astype(np.int8)[:, None], own[:, None]


def in_a_row(programs: Sequence[Program], rows: int) -> Program:
    """One program after the other."""
    nothing = np.zeros((rows, 0), np.int8), np.zeros((rows, 0, NUMBERS), np.float32)
    codes, own = zip(nothing, *programs, strict=True)
    return np.concatenate(codes, axis=1), np.concatenate(own, axis=1)


def beside(programs: Sequence[Program], rows: int) -> Program:
    """The programs side by side, each padded to the longest: codes (N, programs, S), numbers likewise."""
    longest = max(codes.shape[1] for codes, _ in programs)
    codes = np.zeros((rows, len(programs), longest), np.int8)
    own = np.zeros((rows, len(programs), longest, NUMBERS), np.float32)
    for place, (each, numbers_of_each) in enumerate(programs):
        steps = each.shape[1]
        codes[:, place, :steps], own[:, place, :steps] = each, numbers_of_each
    return codes, own
