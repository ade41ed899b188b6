"""The steps of `Work` in torch: what each does to the colours of images, as torchvision v2 defines it for floats.

Images are (n, 3, H, W) of a float type, with values in [0, 1]; a step changes them in place. `factor` is (n, 1, 1).
Only operations whose every result is rounded on its own are used (no fused multiply-add, no sum in floating point): so
the pixels do not depend on how many threads torch has.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.work import GRAY, GRAY_UNITS, Step


def take_steps(images: torch.Tensor, steps: NDArray[np.int8], factors: NDArray[np.float32]) -> None:
    """What `steps` (n, S) and their `factors` say, each image in its own order."""
    for codes, numbers in zip(steps.T, factors.T, strict=True):
        for code in np.unique(codes[codes != Step.NOTHING]).tolist():
            rows = np.flatnonzero(codes == code)
            factor = torch.from_numpy(numbers[rows]).to(images.device, images.dtype).view(-1, 1, 1)
            if len(rows) == len(images):
                STEPS[code](images, factor)
                continue
            where = torch.from_numpy(rows).to(images.device)
            some = images[where]
            STEPS[code](some, factor)
            images[where] = some


def gray(images: torch.Tensor) -> torch.Tensor:
    """Gray values, (n, H, W)."""
    red, green, blue = images.unbind(1)
    return (red * GRAY[0]).add_(green * GRAY[1]).add_(blue * GRAY[2])


def gray_mean(images: torch.Tensor) -> torch.Tensor:
    """The mean gray value of each image, (n, 1, 1)."""
    units = gray(images).mul_(GRAY_UNITS).add_(0.5).to(torch.int64).sum(dim=(1, 2))
    height, width = images.shape[2:]
    return (units.double() / (GRAY_UNITS * height * width)).to(images.dtype).view(-1, 1, 1)


def _brightness(images: torch.Tensor, factor: torch.Tensor) -> None:
    images.mul_(factor[:, None]).clamp_(0, 1)


def _contrast(images: torch.Tensor, factor: torch.Tensor) -> None:
    _blend(images, gray_mean(images), factor)


def _saturation(images: torch.Tensor, factor: torch.Tensor) -> None:
    _blend(images, gray(images), factor)


def _blend(images: torch.Tensor, other: torch.Tensor, factor: torch.Tensor) -> None:
    images.mul_(factor[:, None]).add_((other * (1 - factor))[:, None]).clamp_(0, 1)


def _hue(images: torch.Tensor, factor: torch.Tensor) -> None:
    """HSV and back, without the detour over S: the largest and the smallest value stay, the hue moves between them."""
    red, green, blue = images.unbind(1)
    low, high = torch.aminmax(images, dim=1)
    chroma = high - low
    place = torch.where(
        high == red,
        green - blue,
        torch.where(high == green, (blue - red) + 2 * chroma, (red - green) + 4 * chroma),
    )
    # in sixths of the circle; gray has no hue, and none is seen
    sixth = place.div_(torch.where(chroma > 0, chroma, 1)).add_(6 * factor)
    sixth.sub_((sixth * (1 / 6)).floor_().mul_(6))
    for channel, share in (
        (red, (sixth - 3).abs_().sub_(1)),
        (green, (sixth - 2).abs_().neg_().add_(2)),
        (blue, (sixth - 4).abs_().neg_().add_(2)),
    ):
        channel.copy_(share.clamp_(0, 1).mul_(chroma).add_(low).clamp_(0, 1))


def _solarize(images: torch.Tensor, factor: torch.Tensor) -> None:
    images.copy_(torch.where(images >= factor[:, None], 1 - images, images))


STEPS: dict[int, Callable[[torch.Tensor, torch.Tensor], None]] = {
    Step.BRIGHTNESS: _brightness,
    Step.CONTRAST: _contrast,
    Step.SATURATION: _saturation,
    Step.HUE: _hue,
    Step.SOLARIZE: _solarize,
}
