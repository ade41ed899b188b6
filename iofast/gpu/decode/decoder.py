"""A device's decoder: a library, called so that nothing it writes meets what the device is still working with."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence

import torch

from iofast.errors import reason_of
from iofast.gpu.decode.backend import Backend, Jpeg
from iofast.kernel.contract import MIRRORED_X, MIRRORED_Y, TURNED


class DeviceDecoder:
    """Any number of threads may call it, one at a time gets in.

    `idle` waits until the current stream has done all that was put on it. A library that is not `ordered` is called
    only then: the memory it takes is the current stream's, so whoever used that before has ended, and an event that
    the stream was told to wait for does not do (`Backend`). It is called again behind the library, which may read the
    caller's bytes until then.
    """

    def __init__(self, backend: Backend, idle: Callable[[], None]) -> None:
        self.backend = backend
        self._idle, self._lock, self._warned = idle, threading.Lock(), False

    def decode(self, jpegs: Sequence[Jpeg], turns: Sequence[int]) -> list[torch.Tensor | None]:
        """The region of each, turned upright by its EXIF orientation: uint8 (height, width, 3) of any strides.

        None where the library could not decode it, or made something of another size.
        """
        if not jpegs:
            return []
        with self._lock:
            if not self.backend.ordered:
                self._idle()
            images = self._decoded(jpegs)
            self._idle()
        return [
            None if image is None else upright(image, turn)
            for image, turn in zip(map(self._region, images, jpegs), turns, strict=True)
        ]

    def _decoded(self, jpegs: Sequence[Jpeg]) -> list[torch.Tensor | None]:
        try:
            images = self.backend.decode(jpegs)
        except Exception as error:  # of a driver, an allocator, a version that does not fit; not of one image
            reason = reason_of(error)
        else:
            if len(images) == len(jpegs):
                return images
            reason = f"it gave {len(images)} images"
        if not self._warned:
            self._warned = True
            name = self.backend.name
            warnings.warn(
                f"{name} could not decode a batch of {len(jpegs)} JPEGs, so the CPU does: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
        return [None] * len(jpegs)

    def _region(self, image: torch.Tensor | None, jpeg: Jpeg) -> torch.Tensor | None:
        if image is None or image.dtype != torch.uint8:
            return None
        if not self.backend.regions and image.shape == (jpeg.height, jpeg.width, 3):
            image = image[jpeg.y0 : jpeg.y1, jpeg.x0 : jpeg.x1]
        return image if image.shape == (jpeg.y1 - jpeg.y0, jpeg.x1 - jpeg.x0, 3) else None


def upright(image: torch.Tensor, turn: int) -> torch.Tensor:
    """An image (height, width, 3) turned by its EXIF orientation."""
    if turn in TURNED:
        image = image.transpose(0, 1)
    mirrored = [axis for axis, turns in ((0, MIRRORED_Y), (1, MIRRORED_X)) if turn in turns]
    return image.flip(mirrored) if mirrored else image
