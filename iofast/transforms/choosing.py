"""Which operations are done to an image, and in which order."""

from collections.abc import Sequence

import numpy as np

from iofast.arguments import checked
from iofast.errors import OptionError
from iofast.transforms.arguments import probability
from iofast.transforms.mixing import CutMix, MixUp
from iofast.transforms.transform import DrawnImages, ImageOp, Program, chosen, in_a_row, side_by_side
from iofast.work import NUMBERS


def _not_empty(name: str, value: object) -> Sequence[object]:
    if not isinstance(value, Sequence) or not value:
        raise OptionError(f"{name} must be a non-empty list, found {value!r}")
    return value


def _image_ops(name: str, value: object) -> tuple[object, ...]:
    for op in _not_empty(name, value):
        if not isinstance(op, ImageOp):
            raise OptionError(
                f"{name} must be operations on images such as ColorJitter, or RandomChoice, RandomApply or RandomOrder "
                f"of them, found {op!r}"
            )
    return tuple(value)  # type: ignore[arg-type]


def _draw_all(ops: Sequence[ImageOp], images: DrawnImages, name: str) -> list[Program]:
    """The steps of each of `ops`, under its own name, so that they are independent."""
    return [op.draw(images, f"{name} {number}") for number, op in enumerate(ops)]


@checked()
class RandomChoice(ImageOp):
    """One of several operations on images, or lists of them, for each image; `p` are their probabilities, or weights.

    Without `p` all are equally likely. An empty list changes nothing. The last choice of a transform may be between
    MixUp and CutMix.
    """

    drawn_as = "choice"
    transforms: Sequence[ImageOp | Sequence[ImageOp]] | Sequence[MixUp | CutMix]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        lists = _not_empty("RandomChoice: transforms", self.transforms)
        choices = tuple(tuple(each) if isinstance(each, Sequence) else (each,) for each in lists)
        object.__setattr__(self, "transforms", choices)
        if (ops := [op for each in choices for op in each]) and not self.mixes:
            _image_ops("RandomChoice: transforms", ops)
        try:
            weights = np.ones(len(choices)) if self.p is None else np.array(self.p, np.float64)
        except (TypeError, ValueError):
            weights = np.zeros(0)
        if weights.shape != (len(choices),) or not np.isfinite(weights).all() or weights.min() < 0 or not weights.any():
            expected = f"1 entry per transform ({len(choices)}), each 0 or more and not all 0"
            raise OptionError(f"RandomChoice: p must have {expected}, found {self.p!r}")
        shares = weights / weights.max()  # first: the sum of large weights may be infinite
        object.__setattr__(self, "p", tuple((shares / shares.sum()).tolist()))

    def draw(self, images: DrawnImages, name: str) -> Program:
        rows = len(images)
        lists = [
            in_a_row(_draw_all(each, images, f"{name} {number}"), rows)  # type: ignore[arg-type]
            for number, each in enumerate(self.transforms)
        ]
        codes, numbers = side_by_side(lists, rows)
        which = chosen(self.p, images.draw.uniform(name)[:, 0])
        return codes[np.arange(rows), which], numbers[np.arange(rows), which]

    @property
    def moves(self) -> bool:
        return any(op.moves for each in self.transforms for op in each)  # type: ignore[union-attr]

    @property
    def mixes(self) -> bool:
        """Whether the choices are `MixUp` and `CutMix`."""
        return all(len(each) == 1 and isinstance(each[0], MixUp | CutMix) for each in self.transforms)  # type: ignore[arg-type,index]


class _All(ImageOp):
    """All of several operations."""

    transforms: Sequence[ImageOp]

    @property
    def moves(self) -> bool:
        return any(op.moves for op in self.transforms)


@checked(transforms=_image_ops, p=probability)
class RandomApply(_All):
    """All of several operations on images, with probability `p`, else none of them."""

    drawn_as = "apply"
    transforms: Sequence[ImageOp]
    p: float = 0.5

    def draw(self, images: DrawnImages, name: str) -> Program:
        codes, numbers = in_a_row(_draw_all(self.transforms, images, name), len(images))
        return codes * (images.draw.uniform(name) < self.p), numbers


@checked(transforms=_image_ops)
class RandomOrder(_All):
    """All of several operations on images, in a random order for each image."""

    drawn_as = "order"
    transforms: Sequence[ImageOp]

    def draw(self, images: DrawnImages, name: str) -> Program:
        rows = len(images)
        codes, numbers = side_by_side(_draw_all(self.transforms, images, name), rows)
        order = np.argsort(images.draw.uniform(name, len(self.transforms)), axis=1, kind="stable")
        steps = codes.shape[1] * codes.shape[2]
        codes = np.take_along_axis(codes, order[..., None], axis=1).reshape(rows, steps)
        return codes, np.take_along_axis(numbers, order[..., None, None], axis=1).reshape(rows, steps, NUMBERS)
