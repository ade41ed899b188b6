"""The interface of a library that decodes JPEGs on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

# Images in a call of a library. nvJPEG's engine seems to take as many of a batch as it got in its first call, and CUDA
# the others: on an H100 after a first call of 256 images nvImageCodec decoded 19,800 a second in calls of 256 and 6,700
# in calls of 1,024; after a first call of one image 6,000. So all calls have at most as many as the first.
AT_ONCE = 256


class Jpeg(NamedTuple):
    """One baseline JPEG, grayscale or YCbCr, with a valid header; `data` is uint8 (bytes,) in host memory.

    The pixels wanted are those in [x0, x1) x [y0, y1) of `width` x `height`.
    """

    data: torch.Tensor
    width: int
    height: int
    x0: int
    y0: int
    x1: int
    y1: int


class Backend(Protocol):
    """A library for one device. One thread uses it at a time, with the stream for its work as the current one.

    Its work on the device need not follow the stream's: nvJPEG's hardware engine writes at once, even where the stream
    waits for an event or still uses that memory (H100, nvJPEG 12.3 to 13.2: TorchCodec's pull request 1634). `name` is
    the library's, for messages.
    """

    name: str

    def decode(self, jpegs: Sequence[Jpeg]) -> list[torch.Tensor | None]:
        """Return all pixels of each as RGB on the device: uint8 (height, width, 3), any strides.

        None for an image that the library cannot decode: the CPU then decides. EXIF is ignored.
        """
