"""The bytes of a JPEG file and the pixels that are decoded from them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from iofast import kernel
from iofast.kernel import DecodeOptions, Kind, Payloads, Status
from iofast.run import colours, shadow
from iofast.run.plan import Plan, Size

Pixels = NDArray[np.uint8]
_OPTIONS = DecodeOptions(exact=True)
_idle: list[kernel.Context] = []  # their scratch memory is used again: fresh pages would cost 0.1 ms an image


class Source:
    """A file's bytes, or without them pixels. From the second part of a file on, parts are cut from the whole image."""

    __slots__ = ("data", "name", "parts", "pixels", "size")

    def __init__(self, data: bytes | memoryview, size: Size, name: str) -> None:
        self.data, self.size, self.name = data, size, name
        self.parts = 0
        self.pixels: Pixels | None = None

    def keep(self, plan: Plan) -> None:
        """Note that a part is about to be decoded."""
        self.parts += 1
        if self.parts == 2 and self.pixels is None and not plan.turn:
            width, height = self.size
            pixels = np.empty((1, height, width, 3), np.uint8)
            if not decode([self], [Plan.whole(self.size)], pixels):
                self.pixels = pixels[0]

    def by_pillow(self, plan: Plan, mode: str) -> Image.Image:
        """Do the same by Pillow alone. Raises Pillow's own errors."""
        known = None if self.data else self.pixels
        image = JpegImageFile(io.BytesIO(self.data), self.name) if known is None else Image.fromarray(known)
        first = "RGB" if plan.steps else mode
        made = plan.by_pillow(image if image.mode == first else image.convert(first))
        return made if made.mode == mode else made.convert(mode)


def decode(sources: Sequence[Source], plans: Sequence[Plan], out: NDArray[Any]) -> list[int]:
    """Decode row i of `out`, uint8 (N, height, width, 3) of any strides; return the rows that are Pillow's.

    Those are what the kernel refuses, and after a failed self-check all.
    """
    count = len(sources)
    if shadow.failed():
        return list(range(count))
    raw = [source.pixels if not plan.turn else None for source, plan in zip(sources, plans, strict=True)]
    payloads = [
        np.frombuffer(source.data, np.uint8) if pixels is None else pixels
        for source, pixels in zip(sources, raw, strict=True)
    ]
    indexed = None
    if any(pixels is not None for pixels in raw):
        indexed = np.zeros((count, 3), np.int32)
        for row, pixels in enumerate(raw):
            if pixels is not None:
                indexed[row] = Kind.RGB, *sources[row].size
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


def array_of(source: Source, plan: Plan, mode: str) -> Pixels:
    """Decode one image: (height, width, 3), or (height, width) for mode L. Raises Pillow's errors."""
    width, height = plan.size
    out = np.empty((1, height, width, 3), np.uint8)
    source.keep(plan)
    if decode([source], [plan], out):
        return np.asarray(source.by_pillow(plan, mode))
    return out[0] if mode == "RGB" else np.ascontiguousarray(out[0, :, :, 0])
