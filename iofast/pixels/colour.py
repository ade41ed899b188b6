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

Planes = tuple[torch.Tensor, ...]  # red, green and blue, each (n, H, W)


def take_steps(images: torch.Tensor, steps: NDArray[np.int8], factors: NDArray[np.float32]) -> None:
    """What `steps` (n, S) and their `factors` say, each image in its own order."""
    for codes, numbers in zip(steps.T, factors.T, strict=True):
        for code in set(codes.tolist()) - {int(Step.NOTHING)}:
            rows = np.flatnonzero(codes == code)
            factor = torch.from_numpy(numbers[rows]).to(images.dtype).to(images.device).view(-1, 1, 1)
            if len(rows) == len(images):
                STEPS[code](images.unbind(1), factor)
                continue
            where = torch.from_numpy(rows).to(images.device)
            some = images[where]
            STEPS[code](some.unbind(1), factor)
            images[where] = some


def gray(planes: Planes) -> torch.Tensor:
    """Gray values, (n, H, W)."""
    red, green, blue = planes
    return (red * GRAY[0]).add_(green * GRAY[1]).add_(blue * GRAY[2])


def gray_mean(planes: Planes) -> torch.Tensor:
    """The mean gray value of each image, (n, 1, 1)."""
    values = gray(planes)
    units = values.mul_(GRAY_UNITS).add_(0.5).to(torch.int32).sum(dim=(1, 2), dtype=torch.int64)
    height, width = values.shape[1:]
    if values.device.type not in ("cpu", "cuda"):  # others may have no float64, as MPS
        units = units.cpu()
    return (units.double() / (GRAY_UNITS * height * width)).to(values.dtype).to(values.device).view(-1, 1, 1)


def _brightness(planes: Planes, factor: torch.Tensor) -> None:
    for plane in planes:
        plane.mul_(factor).clamp_(0, 1)


def _contrast(planes: Planes, factor: torch.Tensor) -> None:
    _blend(planes, gray_mean(planes), factor)


def _saturation(planes: Planes, factor: torch.Tensor) -> None:
    _blend(planes, gray(planes), factor)


def _blend(planes: Planes, other: torch.Tensor, factor: torch.Tensor) -> None:
    rest = other * (1 - factor)
    for plane in planes:
        plane.mul_(factor).add_(rest).clamp_(0, 1)


def _hue(planes: Planes, factor: torch.Tensor) -> None:
    """HSV and back, without the detour over S: the largest and the smallest value stay, the hue moves between them.

    Signs choose, 0 or 1, instead of `torch.where`, which takes nine times as long as a multiplication; `aminmax` over
    the channels takes twenty times as long as three comparisons of planes.
    """
    red, green, blue = planes
    low, high = torch.minimum(red, green), torch.maximum(red, green)
    low, high = torch.minimum(low, blue, out=low), torch.maximum(high, blue, out=high)
    chroma = high - low
    not_red, not_green = (high - red).sign_(), (high - green).sign_()
    from_green = (blue - red).add_(chroma * 2).mul_(1 - not_green)
    place = (red - green).add_(chroma * 4).mul_(not_green).add_(from_green).mul_(not_red)
    place.add_((green - blue).mul_(1 - not_red))
    # in sixths of the circle; gray has no hue, and none is seen
    sixth = place.div_((1 - chroma.sign()).add_(chroma)).add_(6 * factor)
    sixth.sub_((sixth * (1 / 6)).floor_().mul_(6))
    for channel, share in (
        (red, (sixth - 3).abs_().sub_(1)),
        (green, (sixth - 2).abs_().neg_().add_(2)),
        (blue, (sixth - 4).abs_().neg_().add_(2)),
    ):
        torch.mul(share.clamp_(0, 1), chroma, out=channel)
        channel.add_(low).clamp_(0, 1)


def _solarize(planes: Planes, factor: torch.Tensor) -> None:
    for plane in planes:
        plane.copy_(torch.where(plane >= factor, 1 - plane, plane))


STEPS: dict[int, Callable[[Planes, torch.Tensor], None]] = {
    Step.BRIGHTNESS: _brightness,
    Step.CONTRAST: _contrast,
    Step.SATURATION: _saturation,
    Step.HUE: _hue,
    Step.SOLARIZE: _solarize,
}
