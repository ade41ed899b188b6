"""The bytes of a JPEG file and the pixels that are decoded from them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from iofast import kernel
from iofast.kernel import DecodeOptions, Kind, Payloads, Status
from iofast.run import colours, shadow
from iofast.run.plan import Plan, Size

Pixels = NDArray[np.uint8]
Erased = tuple[tuple[slice, slice], NDArray[Any] | float]  # what is written where
_OPTIONS = DecodeOptions(exact=True)
_idle: list[kernel.Context] = []  # their scratch memory is used again: fresh pages would cost 0.1 ms an image


class Source:
    """A file's bytes, or without them pixels. From the second part of a file on, parts are cut from the whole image.

    `checked`: Pillow makes the same images, and both are compared. It decodes the file once, as without iofast.
    """

    __slots__ = ("checked", "data", "name", "parts", "pillows", "pixels", "size")

    def __init__(self, data: bytes | memoryview, size: Size, name: str, *, checked: bool = False) -> None:
        self.data, self.size, self.name, self.checked = data, size, name, checked
        self.parts = 0
        self.pixels: Pixels | None = None
        self.pillows: Image.Image | None = None

    def opened(self) -> Image.Image:
        """Open the file, or the pixels, by Pillow."""
        if self.pillows is not None:
            return self.pillows
        if not self.data and self.pixels is not None:
            return Image.fromarray(self.pixels)
        image = JpegImageFile(io.BytesIO(self.data), self.name)
        if self.checked:
            self.pillows = image
        return image

    def keep(self, plan: Plan) -> None:
        """Note that a part is about to be decoded."""
        self.parts += 1
        if self.parts == 2 and self.pixels is None and not plan.turn:
            width, height = self.size
            pixels = np.empty((1, height, width, 3), np.uint8)
            if not decode([Part(self, Plan.whole(self.size))], pixels):
                self.pixels = pixels[0]


class Part(NamedTuple):
    """Pixels that are not decoded yet: a file, what is done to it, and the rectangles of its tensor that are erased."""

    source: Source
    plan: Plan
    erased: tuple[Erased, ...] = ()

    def then(self, plan: Plan, call: colours.Call | None) -> Part:
        """Return what one more call makes of it; `plan` is the plan with that operation."""
        return Part(self.source, plan if call is None else plan._replace(calls=(*plan.calls, call)))

    def by_pillow(self, mode: str) -> Image.Image:
        """Make the same image by Pillow alone. Raises Pillow's own errors, with a note of the file's name."""
        try:
            image = self.source.opened()
            for call in self.plan.calls:
                image = call(image)
            image = image if image.mode == mode else image.convert(mode)
            image.load()
        except Exception as error:
            error.add_note(f"the image: {self.source.name}")
            raise
        return image


def decode(parts: Sequence[Part], out: NDArray[Any]) -> list[int]:
    """Decode row i of `out`, uint8 (N, height, width, 3) of any strides; return the rows that are Pillow's.

    Those are what the kernel refuses, and after a failed self-check all.
    """
    count = len(parts)
    if shadow.failed():
        return list(range(count))
    plans = [part.plan for part in parts]
    raw = [part.source.pixels if not part.plan.turn else None for part in parts]
    payloads = [
        np.frombuffer(part.source.data, np.uint8) if pixels is None else pixels
        for part, pixels in zip(parts, raw, strict=True)
    ]
    indexed = None
    if any(pixels is not None for pixels in raw):
        indexed = np.zeros((count, 3), np.int32)
        for row, pixels in enumerate(raw):
            if pixels is not None:
                indexed[row] = Kind.RGB, *parts[row].source.size
    places = Payloads(
        np.full(count, -1, np.int32),
        np.array([payload.__array_interface__["data"][0] for payload in payloads], np.uint64),
        np.array([payload.size for payload in payloads], np.uint64),
        None,
        np.array([plan.turn for plan in plans], np.uint8),
        indexed,
    )
    boxes = np.array([plan.numbers() for plan in plans], np.int32)
    flips = np.array([plan.flips() for plan in plans], np.uint8)
    status = np.zeros(count, np.int32)
    try:
        context = _idle.pop()  # append and pop of a list are atomic
    except IndexError:
        context = kernel.Context(_OPTIONS)
    finish = colours.finish([plan.steps for plan in plans])
    kernel.decode_batch(context, places, boxes, flips, out, status, 0, count, finish)
    _idle.append(context)
    return np.flatnonzero(status != Status.OK).tolist()


def array_of(part: Part, mode: str) -> Pixels:
    """Decode one image, and check it: (height, width, 3), or (height, width) for mode L. Raises Pillow's errors."""
    width, height = part.plan.size
    out = np.empty((1, height, width, 3), np.uint8)
    part.source.keep(part.plan)
    if decode([part], out):
        return np.asarray(part.by_pillow(mode))
    pixels = out[0] if mode == "RGB" else np.ascontiguousarray(out[0, :, :, 0])
    if part.source.checked:
        theirs = shadow.timed(lambda: np.asarray(part.by_pillow(mode)))
        if not shadow.agree(pixels, theirs, part.source.name):
            return theirs
    return pixels
