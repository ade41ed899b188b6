"""MixUp and CutMix: pairs of images of a batch, and their labels, mixed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from iofast.arguments import check_fields, checked, integer, optional
from iofast.errors import OptionError
from iofast.transforms.arguments import above_zero, probability
from iofast.transforms.transform import Column, DrawnImages, Op, Stage, chosen
from iofast.work import Work


class Mix(Op):
    """An operation that mixes images and labels."""

    stage = Stage.MIX
    num_classes: int
    label_smoothing: float

    def draw(self, images: DrawnImages, unmixed: Work) -> Work:
        """`unmixed` with shares and patches. An image that is not mixed keeps all of itself and its label."""
        draw, rows = images.draw, len(images)
        several, which = self._chosen(images)
        share, of_label, patch = np.ones(rows), np.ones(rows), np.zeros((rows, 4))
        whether = draw.uniform("mix whether")[:, 0]
        for number, mix in enumerate(several):
            done = (which == number) & (whether < mix.p) & (mix.until is None or draw.epoch < mix.until)
            drawn = draw.beta("mix" if number == 0 else f"mix {number}", mix.alpha)
            if isinstance(mix, MixUp):
                share[done] = of_label[done] = drawn[done]
            else:
                patches, left = _patches(drawn, images)
                patch[done], of_label[done] = patches[done], left[done]
        own = of_label.astype(np.float32)
        return replace(unmixed, share=share.astype(np.float32), own=own, patch=patch.astype(np.int32))

    @abstractmethod
    def _chosen(self, images: DrawnImages) -> tuple[Sequence[_Single], NDArray[np.intp]]:
        """Mixes, and which of them each image gets."""


@dataclass(frozen=True, kw_only=True)
class _Single(Mix):
    alpha: float = 1.0
    num_classes: int
    p: float = 1.0
    label_smoothing: float = 0.0
    until: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, alpha=above_zero, num_classes=integer(1), p=probability, until=optional(integer(0)))
        if not isinstance(self.label_smoothing, int | float) or not 0 <= self.label_smoothing < 1:
            name, found = type(self).__name__, repr(self.label_smoothing)
            raise OptionError(f"{name}: label_smoothing must be from 0 to below 1, found {found}")

    def _chosen(self, images: DrawnImages) -> tuple[Sequence[_Single], NDArray[np.intp]]:
        return (self,), np.zeros(len(images), np.intp)


@dataclass(frozen=True, kw_only=True)
class MixUp(_Single):
    """Each image becomes share * own + (1 - share) * partner's, with `share` from Beta(alpha, alpha); labels likewise.

    The partner of position p is p XOR 1. Labels become float32 (N, num_classes); `label_smoothing` of each is spread
    evenly over all classes. An image is mixed with probability `p`, and only in epochs below `until`.
    """


@dataclass(frozen=True, kw_only=True)
class CutMix(_Single):
    """A rectangle of each image is the partner's: 1 - Beta(alpha, alpha) of the area before it is cut at the edges.

    Labels are mixed in proportion. Everything else as of `MixUp`.
    """


@checked()
class Mixes(Mix):
    """One of several mixes for each image, with the probabilities `p`: the compiled `RandomChoice` of mixes."""

    choices: tuple[MixUp | CutMix, ...]
    p: tuple[float, ...]
    num_classes: int = field(init=False, repr=False)
    label_smoothing: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len({(each.num_classes, each.label_smoothing) for each in self.choices}) > 1:
            raise OptionError(f"RandomChoice: num_classes and label_smoothing must be equal, found {self.choices}")
        object.__setattr__(self, "num_classes", self.choices[0].num_classes)
        object.__setattr__(self, "label_smoothing", self.choices[0].label_smoothing)

    def _chosen(self, images: DrawnImages) -> tuple[Sequence[_Single], NDArray[np.intp]]:
        return self.choices, chosen(self.p, images.draw.uniform("mix which")[:, 0])


def _patches(share: Column, images: DrawnImages) -> tuple[Column, Column]:
    """Rectangles (y0, x0, y1, x1) of 1 - `share` of the area, and the share of each image outside of them."""
    u = images.draw.uniform("mix place", 2)
    widths, heights = images.widths, images.heights
    x, y = np.floor(u[:, 0] * widths), np.floor(u[:, 1] * heights)
    half = 0.5 * np.sqrt(1 - share)
    w, h = np.floor(half * widths), np.floor(half * heights)
    x0, y0, x1, y1 = np.maximum(x - w, 0), np.maximum(y - h, 0), np.minimum(x + w, widths), np.minimum(y + h, heights)
    return np.stack((y0, x0, y1, x1), axis=1), 1 - (x1 - x0) * (y1 - y0) / (widths * heights)
