"""A device's decoder: calls a library so that its writes never meet memory that the device still uses."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence

import torch

from iofast.errors import reason_of
from iofast.gpu.decode.backend import AT_ONCE, Backend, Jpeg
from iofast.kernel.contract import MIRRORED_X, MIRRORED_Y, TURNED


class DeviceDecoder:
    """A library, serialised for any number of threads.

    `idle` waits until the current stream has done all its work. It is called before each call of the library: the
    library's memory belongs to the current stream, so earlier uses have ended then, and waiting for an event would not
    be enough (`Backend`). It is called again after the last: the library may read the caller's bytes until then.
    """

    def __init__(self, backend: Backend, idle: Callable[[], None]) -> None:
        self.backend = backend
        self._idle, self._lock, self._warned = idle, threading.Lock(), False

    def decode(self, jpegs: Sequence[Jpeg], turns: Sequence[int]) -> list[torch.Tensor | None]:
        """Return each region, turned upright by its EXIF orientation: uint8 (height, width, 3), any strides.

        None where the library failed or returned another size.
        """
        if not jpegs:
            return []
        with self._lock:
            self._idle()
            images = list[torch.Tensor | None]()
            for start in range(0, len(jpegs), AT_ONCE):
                images += self._call(jpegs[start : start + AT_ONCE])
                self._idle()
        regions = map(_region, images, jpegs)
        return [None if region is None else upright(region, turn) for region, turn in zip(regions, turns, strict=True)]

    def _call(self, jpegs: Sequence[Jpeg]) -> list[torch.Tensor | None]:
        """Call the library. If it fails as a whole, warn once and return None for each image."""
        try:
            images = self.backend.decode(jpegs)
            if len(images) == len(jpegs):
                return images
            reason = f"expected {len(jpegs)} images, found {len(images)}"
        except Exception as error:  # of a driver, an allocator, an unsuitable version
            reason = reason_of(error)
        if not self._warned:
            self._warned = True
            name = self.backend.name
            warnings.warn(
                f"{name} could not decode a batch of {len(jpegs)} JPEGs, so the CPU does: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
        return [None] * len(jpegs)


def _region(image: torch.Tensor | None, jpeg: Jpeg) -> torch.Tensor | None:
    if image is None or image.dtype != torch.uint8 or image.shape != (jpeg.height, jpeg.width, 3):
        return None
    return image[jpeg.y0 : jpeg.y1, jpeg.x0 : jpeg.x1]


def upright(image: torch.Tensor, turn: int) -> torch.Tensor:
    """Turn an image (height, width, 3) by its EXIF orientation."""
    if turn in TURNED:
        image = image.transpose(0, 1)
    mirrored = [axis for axis, turns in ((0, MIRRORED_Y), (1, MIRRORED_X)) if turn in turns]
    return image.flip(mirrored) if mirrored else image
