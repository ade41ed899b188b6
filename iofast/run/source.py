"""The bytes of a JPEG file and the pixels that are decoded from them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from copy import copy
from importlib import import_module
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from iofast import kernel
from iofast.kernel import DecodeOptions, Kind, Payloads, Status
from iofast.run import colours, notes, shadow
from iofast.run.plan import Plan, Size

Pixels = NDArray[np.uint8]
Call = tuple[str | None, str, tuple[Any, ...], Mapping[str, Any]]
Erased = tuple[tuple[slice, slice], NDArray[Any] | float]  # what is written where
_OPTIONS = DecodeOptions(exact=True)
_idle: list[kernel.Context] = []  # their scratch memory is used again: fresh pages would cost 0.1 ms an image


class Source:
    """A file's bytes, or pixels (height, width, 3). From the second part of a file on, parts are cut from its pixels.

    `checked`: Pillow makes the same images, and both are compared; None = not decided yet.
    """

    def __init__(
        self, data: bytes | memoryview, size: Size, name: str, *, checked: bool | None, pixels: Pixels | None = None
    ) -> None:
        self.data, self.size, self.name, self.pixels = data, size, name, pixels
        self._checked = checked
        self._parts = 0
        self._opened: Image.Image | None = None

    @property
    def checked(self) -> bool:
        """Whether this is one of the checked images. Decided at the first question, when pixels are needed."""
        if self._checked is None:
            self._checked = shadow.wanted()
        return self._checked

    def opened(self) -> Image.Image:
        """Open the file, or the pixels, by Pillow. It decodes a checked file once, as without iofast."""
        if self._opened is None:
            image: Image.Image = JpegImageFile(io.BytesIO(self.data), self.name) if self.data else (
                Image.fromarray(cast(Pixels, self.pixels))
            )  # fmt: skip
            if not self._checked:
                return image
            self._opened = image
        return self._opened

    def keep(self, plan: Plan) -> None:
        """Note that a part is about to be decoded."""
        self._parts += 1
        if self._parts == 2 and self.pixels is None and not plan.turn:
            width, height = self.size
            pixels = np.empty((1, height, width, 3), np.uint8)
            if not _refused([Part(self, Plan.whole("RGB", self.size))], pixels):
                self.pixels = pixels[0]
                self.pixels.flags.writeable = False


class Part(NamedTuple):
    """Pixels that are not decoded yet: a file, and what is done to it.

    calls   the same as the script called it: Pillow repeats it on what the kernel refuses, and on checked images.
            Module or None for a method, name, arguments behind the image.
    erased  rectangles of its tensor
    """

    source: Source
    plan: Plan
    calls: tuple[Call, ...] = ()
    erased: tuple[Erased, ...] = ()

    def after(self, module: str | None, name: str, given: Sequence[Any], named: Mapping[str, Any]) -> Part | None:
        """Return the part after one more operation; None where Pillow has to do it."""
        plan = self.plan.after(name, given, named)
        if plan is None or plan is self.plan:
            return plan and self
        # Copies: a script may change its lists before Pillow repeats the call.
        return Part(self.source, plan, (*self.calls, (module, name, tuple(map(copy, given)), named)))

    def by_pillow(self) -> Image.Image:
        """Make the same image by Pillow alone. Raises Pillow's own errors, with a note of the file's name."""
        try:
            image = self.source.opened()
            for call in self.calls:
                image = _repeat(image, *call)
            image.load()
        except Exception as error:
            error.add_note(f"the image: {self.source.name}")
            raise
        return image

    def array(self) -> Pixels:
        """Decode, and check: (height, width, 3), or (height, width) for mode L, read-only. Raises Pillow's errors."""
        source, plan = self.source, self.plan
        if not source.data and not self.calls:
            return cast(Pixels, source.pixels)
        self.note()
        width, height = plan.size
        out = np.empty((1, height, width, 3), np.uint8)
        decode([self], out)
        pixels = out[0] if plan.mode == "RGB" else np.ascontiguousarray(out[0, :, :, 0])
        if not shadow.failed() and source.checked:
            theirs: Pixels = shadow.timed(lambda: np.asarray(self.by_pillow()))
            if not shadow.agree(pixels, theirs, source.name):
                return theirs
        pixels.flags.writeable = False
        return pixels

    def image(self) -> Image.Image:
        """Make it an image of Pillow's, which may be changed. Raises Pillow's errors."""
        source, plan = self.source, self.plan
        if source.pixels is None and not self.calls:  # the kernel's pixels would be copied: gray is 10 % slower
            self.note()
            return Part(Source(source.data, source.size, source.name, checked=False), plan).by_pillow()
        image = Image.new(plan.mode, plan.size, None)
        image.frombytes(self.array().data)
        return image

    def note(self) -> None:
        """Note that it is decoded where the script uses it."""
        if self.source.data:  # else its pixels are known
            notes.count("whole" if self.plan.is_whole else "part")
        if self.source.data and self.plan.is_whole:
            notes.notes().decoded_whole_by_line[notes.line_of_script()] += 1


def _repeat(
    image: Image.Image, module: str | None, name: str, given: Sequence[Any], named: Mapping[str, Any]
) -> Image.Image:
    """Do an operation by Pillow or torchvision."""
    function: Any = getattr(Image.Image if module is None else import_module(module), name)
    result: Image.Image = (
        function(image).enhance(*given) if isinstance(function, type) else function(image, *given, **named)
    )
    return result


def decode(parts: Sequence[Part], out: Pixels) -> None:
    """Decode row i of `out`, uint8 (N, height, width, 3) of any strides. Raises Pillow's errors."""
    for part in parts:
        part.source.keep(part.plan)
    for row in _refused(parts, out):
        out[row] = np.asarray(parts[row].by_pillow()).reshape(*out.shape[1:3], -1)  # L has no third dimension


def _refused(parts: Sequence[Part], out: Pixels) -> list[int]:
    """Decode what the kernel does not refuse, after a failed self-check nothing; return the other rows."""
    count = len(parts)
    if shadow.failed():
        return list(range(count))
    payloads, indexed = list[Pixels](), np.zeros((count, 3), np.int32)
    for row, (source, plan, *_) in enumerate(parts):
        if source.pixels is not None and not plan.turn:
            indexed[row] = Kind.RGB, *source.size
            payloads.append(source.pixels)
        else:
            payloads.append(np.frombuffer(source.data, np.uint8))
    plans = [part.plan for part in parts]
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
