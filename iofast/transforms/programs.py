"""Programs of steps as columns: codes (N, S) and numbers (N, S, NUMBERS), of N images at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.choices import Draw
from iofast.transforms.geometry import Column
from iofast.work import NUMBERS, Step

Program = tuple[NDArray[np.int8], NDArray[np.float32]]


class DrawnImages(NamedTuple):
    """What steps are drawn for: random numbers of N images, and their sizes once they are cropped (pixels)."""

    draw: Draw
    widths: Column
    heights: Column

    def __len__(self) -> int:
        return len(self.draw)


def numbers(*values: Column) -> NDArray[np.float32]:
    """The first numbers of each step, (N, S) each; the others are 0."""
    made = np.zeros((*values[0].shape, NUMBERS), np.float32)
    for place, each in enumerate(values):
        made[..., place] = each
    return made


def one(step: Step, done: NDArray[np.bool_], own: NDArray[np.float32]) -> Program:
    """One step, of the images where it is `done`; its numbers are (N, NUMBERS)."""
    return (done * np.int8(step)).astype(np.int8)[:, None], own[:, None]


def nothing(rows: int) -> Program:
    """A program without any step."""
    return np.zeros((rows, 0), np.int8), np.zeros((rows, 0, NUMBERS), np.float32)


def in_a_row(made: Sequence[Program], rows: int) -> Program:
    """One program after the other."""
    codes, own = zip(nothing(rows), *made, strict=True)
    return np.concatenate(codes, axis=1), np.concatenate(own, axis=1)


def beside(made: Sequence[Program], rows: int) -> Program:
    """As many steps of each as the longest has, (N, how many there are, steps)."""
    most = max(codes.shape[1] for codes, _ in made)
    codes = np.zeros((rows, len(made), most), np.int8)
    own = np.zeros((rows, len(made), most, NUMBERS), np.float32)
    for place, (theirs, with_them) in enumerate(made):
        codes[:, place, : theirs.shape[1]], own[:, place, : theirs.shape[1]] = theirs, with_them
    return codes, own
