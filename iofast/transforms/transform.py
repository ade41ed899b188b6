"""What a transform is. Each is one class in one file: its parameters, their checks, its stage, and what it draws.

Transforms compute for a whole batch what torchvision computes for one image. Widths and heights are float64 columns in
upright pixels, at least 1. Random numbers come from a `Draw`, so a sample's do not depend on its batch.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.kernel.contract import FILTERS
from iofast.transforms.arguments import RANDOM, Pair, interpolation_name
from iofast.work import NUMBERS, Step

Floats = NDArray[np.float64]
Program = tuple[NDArray[np.int8], NDArray[np.float32]]  # codes (N, S) of steps, and their numbers (N, S, NUMBERS)


class Boxes(NamedTuple):
    """Left, top, width and height of one box per row, whole numbers in float64."""

    x: Floats
    y: Floats
    width: Floats
    height: Floats


@dataclass(frozen=True, slots=True)
class DrawnImages:
    """The random numbers of N images, and their sizes after the crop (pixels)."""

    draw: Draw
    widths: Floats
    heights: Floats

    def __len__(self) -> int:
        return len(self.draw)


class Stage(IntEnum):
    """Where a transform may be in a list: behind those of lower stages. IMAGE and VALUE may have several."""

    RESIZE = 0
    CROP = 1
    IMAGE = 2
    VALUE = 3
    MIX = 4


class Transform:
    """A transform: what a user's list consists of. `random`: whether geometry differs from epoch to epoch."""

    stage: ClassVar[Stage]
    random: bool = False


class Resampling(Transform):
    """A transform that resamples, with the kernel's filter `interpolation`, which becomes a name."""

    interpolation: str
    antialias: bool | None

    def __post_init__(self) -> None:
        found, name = self.interpolation, type(self).__name__
        filter = interpolation_name(found)
        if not isinstance(filter, str) or filter not in (*FILTERS, RANDOM):
            raise OptionError(f"{name}: interpolation must be one of {', '.join(FILTERS)} or {RANDOM}, found {found!r}")
        if not self.antialias and filter in ("bicubic", RANDOM):
            raise OptionError(f"{name}: interpolation without antialias must be bilinear or nearest, found {found!r}")
        object.__setattr__(self, "interpolation", filter)


class Resizing(Resampling):
    """A new size of the whole image."""

    stage = Stage.RESIZE

    @property
    def fixed(self) -> Pair | None:
        """(height, width) of every result; None if it depends on the image."""
        return None

    @abstractmethod
    def sizes(self, draw: Draw, widths: Floats, heights: Floats) -> tuple[Floats, Floats]:
        """The new widths and heights of images of `widths` x `heights`."""


class Crop(Transform):
    """A part of the image, or of a window around it. Most make results of one `size`."""

    stage = Stage.CROP
    size: int | Sequence[int]

    @property
    def pads(self) -> bool:
        """Whether it may reach beyond its image."""
        return False

    def fixed(self, resized: Pair | None) -> Pair | None:  # noqa: ARG002  Pad needs it
        """(height, width) of every result, of images of the size `resized`; None if it depends on the image."""
        return cast(Pair, self.size)

    @abstractmethod
    def boxes(self, draw: Draw, widths: Floats, heights: Floats) -> Boxes:
        """The parts of images of `widths` x `heights`."""


class Op(Transform):
    """An operation on pixels after the crop."""


class ImageOp(Op):
    """An operation on the levels of an image.

    `drawn_as` is the name of its random numbers. The name is a part of them: never change one.
    """

    stage = Stage.IMAGE
    drawn_as: ClassVar[str]

    @property
    def moves(self) -> bool:
        """Whether pixels may come to other places."""
        return False

    @abstractmethod
    def draw(self, images: DrawnImages, name: str) -> Program:
        """The steps of each image, drawn under `name`."""


class SingleStep(ImageOp):
    """One step with one number, taken with the operation's probability `p` if it has one."""

    step: ClassVar[Step]

    @property
    def number(self) -> float:
        """The step's number."""
        return 0.0

    def draw(self, images: DrawnImages, name: str) -> Program:
        done = images.draw.uniform(name) < getattr(self, "p", 1)
        return (done * self.step).astype(np.int8), numbers(np.full((len(images), 1), self.number))


def numbers(*values: Floats) -> NDArray[np.float32]:
    """The numbers of steps, from columns of equal shape; the others are 0."""
    made = np.zeros((*values[0].shape, NUMBERS), np.float32)
    for lane, column in enumerate(values):
        made[..., lane] = column
    return made


def one_step(step: Step, done: NDArray[np.bool_], its_numbers: NDArray[np.float32]) -> Program:
    """One step, in the images where it is `done`; its numbers are (N, NUMBERS)."""
    return (done * np.int8(step)).astype(np.int8)[:, None], its_numbers[:, None]


def in_a_row(programs: Sequence[Program], rows: int) -> Program:
    """One program after the other."""
    nothing = np.zeros((rows, 0), np.int8), np.zeros((rows, 0, NUMBERS), np.float32)
    codes, of_codes = zip(nothing, *programs, strict=True)
    return np.concatenate(codes, axis=1), np.concatenate(of_codes, axis=1)


def side_by_side(programs: Sequence[Program], rows: int) -> Program:
    """The programs, each padded to the longest: codes (N, programs, S), numbers likewise."""
    longest = max(codes.shape[1] for codes, _ in programs)
    codes = np.zeros((rows, len(programs), longest), np.int8)
    of_codes = np.zeros((rows, len(programs), longest, NUMBERS), np.float32)
    for lane, (each, numbers_of_each) in enumerate(programs):
        steps = each.shape[1]
        codes[:, lane, :steps], of_codes[:, lane, :steps] = each, numbers_of_each
    return codes, of_codes


def chosen(p: Sequence[float] | None, u: Floats) -> NDArray[np.intp]:
    """Choices with the probabilities `p`, by uniform numbers."""
    ends = np.asarray(p, np.float64).cumsum()
    return np.searchsorted(ends / ends[-1], u, "right")
