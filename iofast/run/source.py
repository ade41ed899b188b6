"""The bytes of a JPEG file and the pixels that are decoded from them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL.JpegImagePlugin import JpegImageFile

from iofast import kernel
from iofast.kernel import DecodeOptions, Kind, Payloads, Status
from iofast.run import colours, shadow

if TYPE_CHECKING:
    from iofast.run.parts import Part

Size = tuple[int, int]  # width, height
Pixels = NDArray[np.uint8]
_OPTIONS = DecodeOptions(exact=True)
_idle: list[kernel.Context] = []  # their scratch memory is used again: fresh pages would cost 0.1 ms an image


class Source:
    """A file's bytes; from the second part on also its pixels (height, width, 3), from which parts are cut.

    `checked`: Pillow makes the same images, and both are compared; None = not decided yet.
    """

    def __init__(self, data: bytes | memoryview, size: Size, name: str, checked: bool | None = None) -> None:
        self.data, self.size, self.name, self._checked = data, size, name, checked
        self.pixels: Pixels | None = None
        self.parts = 0
        self._opened: JpegImageFile | None = None

    def __reduce__(self) -> Any:  # to another process without the bytes, which travel in shared memory
        return Source, (b"", self.size, self.name, False)

    def again(self) -> Source:
        """Return the same file as if it had just been opened. It is not checked."""
        return Source(self.data, self.size, self.name, checked=False)

    @property
    def checked(self) -> bool:
        """Whether this is one of the checked images. Decided at the first question, when pixels are needed."""
        if self._checked is None:
            self._checked = shadow.wanted()
        return self._checked

    def opened(self) -> JpegImageFile:
        """Open the file by Pillow. It decodes a checked file once, as without iofast."""
        if self._opened is None or not self._checked:
            self._opened = JpegImageFile(io.BytesIO(self.data), self.name)
        return self._opened


def decode(parts: Sequence[Part], out: Pixels) -> None:
    """Decode row i of `out`, uint8 (N, height, width, 3) of any strides. Raises Pillow's errors."""
    for part in parts:
        source = part.source
        source.parts += 1
        if source.parts == 2 and source.pixels is None and not part.turn:
            width, height = source.size
            pixels = np.empty((1, height, width, 3), np.uint8)
            if not _refused([part.whole(source, "RGB")], pixels):
                pixels.flags.writeable = False
                source.pixels = pixels[0]
    for row in _refused(parts, out):
        out[row] = np.asarray(parts[row].by_pillow()).reshape(*out.shape[1:3], -1)  # L has no third dimension


def _refused(parts: Sequence[Part], out: Pixels) -> list[int]:
    """Decode what the kernel does not refuse, after a failed self-check nothing; return the other rows."""
    count = len(parts)
    if shadow.failed():
        return list(range(count))
    payloads, indexed = list[Pixels](), np.zeros((count, 3), np.int32)
    for row, part in enumerate(parts):
        pixels = None if part.turn else part.source.pixels
        payloads.append(np.frombuffer(part.source.data, np.uint8) if pixels is None else pixels)
        if pixels is not None:
            indexed[row] = Kind.RGB, *part.source.size
    addresses = [payload.__array_interface__["data"][0] for payload in payloads]
    sizes, turns = [payload.size for payload in payloads], [part.turn for part in parts]
    places = Payloads.in_memory(addresses, sizes, turns, indexed)
    boxes = np.array([part.box() for part in parts], np.int32)
    flips = np.array([part.flips() for part in parts], np.uint8)
    status = np.zeros(count, np.int32)
    try:
        context = _idle.pop()  # append and pop of a list are atomic
    except IndexError:
        context = kernel.Context(_OPTIONS)
    finish = colours.finish([part.steps for part in parts])
    kernel.decode_batch(context, places, boxes, flips, out, status, 0, count, finish)
    _idle.append(context)
    return np.flatnonzero(status != Status.OK).tolist()
