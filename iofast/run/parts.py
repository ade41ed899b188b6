"""An image that is not decoded yet: the bytes of a JPEG file, and what has been asked of it.

That is orientation, a region, a resize, a window of the result, a mirror, colours, and erasing as a tensor.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from importlib import import_module
from operator import attrgetter, index
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from iofast import kernel
from iofast.kernel import DecodeOptions, Kind, Payloads, Status
from iofast.kernel.contract import ALL_FILTERS
from iofast.run import colours, notes, shadow

Pixels = NDArray[np.uint8]
Size = tuple[int, int]  # width, height
Box = tuple[int, int, int, int]  # x0, y0, x1, y1
Call = tuple[str, str, tuple[Any, ...], Mapping[str, Any]]  # module and name: a script may replace the function
Erased = tuple[tuple[slice, slice], Any]  # where, and what is written: an array or a number

_FILTERS = {
    each: ALL_FILTERS.index(name) + 1 for each in Image.Resampling if (name := each.name.lower()) in ALL_FILTERS
}
_TURNS = (2, 4, 8, 3, 6, 5, 7)  # by Image.Transpose: the EXIF orientation that it corrects

_OPTIONS = DecodeOptions(exact=True)
_idle: list[kernel.Context] = []  # their scratch memory is used again: fresh pages would cost 0.1 ms an image


def _nothing(*_: Any, **__: Any) -> None:
    """Note no function of the script's own."""


class Source:
    """A file's bytes, or none; from the second part on its pixels (height, width, 3), from which parts are cut.

    `checked`: Pillow makes the same images, and both are compared; None = not decided yet.
    """

    def __init__(self, data: bytes | memoryview, size: Size, name: str, checked: bool | None = None) -> None:
        self.data, self.size, self.name, self._checked = data, size, name, checked
        self.pixels: Pixels | None = None
        self.parts = 0
        self._opened: Image.Image | None = None

    def __reduce__(self) -> Any:  # to another process without the bytes, which travel in shared memory
        return Source, (b"", self.size, self.name, False)

    @property
    def checked(self) -> bool:
        """Whether this is one of the checked images. Decided at the first question, when pixels are needed."""
        if self._checked is None:
            self._checked = shadow.wanted()
        return self._checked

    def opened(self) -> Image.Image:
        """Open the file by Pillow. It decodes a checked file once, as without iofast."""
        if self._opened is None or not self._checked:
            if self.pixels is not None and not self.data:
                self._opened = Image.fromarray(self.pixels)
            else:
                self._opened = JpegImageFile(io.BytesIO(self.data), self.name)
        return self._opened


class Part(NamedTuple):
    """Operations on an image in the order of the fields.

    The methods with Pillow's names take Pillow's arguments. They return None where Pillow has to do it.
    """

    source: Source
    mode: str  # of the result: RGB or L
    size: Size  # of the result
    full: Size  # of the whole image after `turn`
    region: Box
    turn: int = 0  # EXIF orientation, 0 = as stored
    virtual: Size | None = None  # the size to which the region is resampled; None = not resampled
    window: Size = (0, 0)  # the left upper corner of what is kept of the virtual image
    resampling: int = 0  # as in the kernel's `flips`; 0 = not resampled
    mirrored: bool = False  # left to right
    steps: tuple[colours.Colour, ...] = ()  # on the finished pixels
    erased: tuple[Erased, ...] = ()  # rectangles of its tensor
    calls: tuple[Call, ...] = ()  # the script's: Pillow repeats them on what the kernel refuses, and on checked images

    @classmethod
    def whole(cls, source: Source, mode: str) -> Part:
        """Return an unchanged image."""
        return cls(source, mode, source.size, source.size, (0, 0, *source.size))

    @property
    def is_whole(self) -> bool:
        """Whether all pixels of the file are needed at their own size."""
        return self.virtual is None and self.size == self.full

    def after(self, function: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]) -> Part | None:
        """Return the part after one more operation of Pillow or torchvision; None where Pillow has to do it.

        `given` and `named` are its arguments behind the image; a class of ImageEnhance has its factor.
        """
        name = function.__name__
        try:
            if name in colours.STEPS:
                part = self._step(colours.STEPS[name](*given, **named))
            else:
                part = getattr(self, name, _nothing)(*given, **named)
        except (TypeError, ValueError, LookupError, OverflowError):  # Pillow has its own error, or other arguments
            return None
        if part is None or part is self:
            return part
        # Copies: a script may change its lists before Pillow repeats the call.
        copies = tuple(map(copy, given)), {key: copy(value) for key, value in named.items()}
        return part._replace(calls=(*self.calls, (function.__module__, function.__qualname__, *copies)))

    def _step(self, step: colours.Colour | None) -> Part | None:
        return self._replace(steps=(*self.steps, step)) if step and self.mode == "RGB" else None

    def copy(self) -> Part:
        """Change nothing."""
        return self

    def convert(self, mode: str | None = None) -> Part | None:
        """Between RGB and L. Pillow's gray of a whole image is as fast."""
        if mode in (None, self.mode):
            return self
        if (self.mode, mode) == ("L", "RGB"):
            return self._replace(mode="RGB")
        gray = None if mode != "L" or self.is_whole else self._step(colours.LUMA)
        return gray and gray._replace(mode="L")

    def crop(self, box: Sequence[float] | None = None) -> Part | None:
        """Cut out a box, rounded as Pillow rounds. Pillow fills what lies outside of an image."""
        if box is None:
            return self
        x0, y0, x1, y1 = (round(each) for each in box)
        width, height = self.size
        if self.steps or not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
            return None
        if self.mirrored:
            x0, x1 = width - x1, width - x0
        size = x1 - x0, y1 - y0
        if self.virtual is not None:
            return self._replace(window=(self.window[0] + x0, self.window[1] + y0), size=size)
        x, y = self.region[:2]
        return self._replace(region=(x + x0, y + y0, x + x1, y + y1), size=size)

    def resize(self, size: Sequence[int], resample: int | None = None) -> Part | None:
        """Resample to `size`; once, and not behind a mirror, whose weights could round in another way."""
        width, height = map(index, size)
        resampling = Image.Resampling(Image.Resampling.BICUBIC if resample is None else resample)
        if (width, height) == self.size:
            return self
        behind = self.virtual is not None or self.mirrored or self.steps
        if behind or resampling not in _FILTERS or min(width, height) < 1:
            return None
        return self._replace(virtual=(width, height), size=(width, height), resampling=_FILTERS[resampling])

    def transpose(self, method: int) -> Part | None:
        """Mirror; any other transpose of a whole image that has not been turned."""
        across = method == Image.Transpose.FLIP_LEFT_RIGHT
        if across and not self.steps:
            return self._replace(mirrored=not self.mirrored)
        turn = _TURNS[Image.Transpose(method)]
        if self.turn or self.mirrored or self.steps or not self.is_whole:
            mirrors = across or method == Image.Transpose.FLIP_TOP_BOTTOM
            return self._replace(steps=(*self.steps, colours.flip(across=across))) if mirrors else None
        full = self.full[::-1] if turn >= 5 else self.full
        return self._replace(turn=turn, full=full, region=(0, 0, *full), size=full)

    def transform(
        self, size: Sequence[int], method: Any, data: Any, resample: int = 0, *, fillcolor: Any = None
    ) -> Part | None:
        """Move pixels by an affine matrix, to the same size."""
        affine = method == Image.Transform.AFFINE and tuple(size) == self.size
        return self._step(colours.affine(self.size, data, resample, fillcolor)) if affine else None

    def box(self) -> tuple[int, ...]:
        """Return the eight numbers of a row of the kernel's `boxes`."""
        x0, y0, x1, y1 = self.region
        return (x0, y0, x1, y1, *(self.virtual or (x1 - x0, y1 - y0)), *self.window)

    def flips(self) -> int:
        """Return the row of the kernel's `flips`."""
        return (self.resampling or 1) << 1 | self.mirrored

    def by_pillow(self) -> Image.Image:
        """Make the same image by Pillow alone. Raises Pillow's own errors, with a note of the file's name."""
        try:
            image: Image.Image = self.source.opened()
            for module, name, given, named in self.calls:
                function = attrgetter(name)(import_module(module))
                enhancer = isinstance(function, type)
                image = function(image).enhance(*given) if enhancer else function(image, *given, **named)
            image.load()
        except Exception as error:
            error.add_note(f"the image: {self.source.name}")
            raise
        return image

    def array(self) -> Pixels:
        """Decode, and check: (height, width, 3), or (height, width) for mode L, read-only. Raises Pillow's errors."""
        source, known = self.source, self.source.pixels
        as_stored = not self.calls and self.mode == "RGB"
        if as_stored and known is not None:
            return known
        self.note()
        width, height = self.size
        out = np.empty((1, height, width, 3), np.uint8)
        decode([self], out)
        pixels = out[0] if self.mode == "RGB" else np.ascontiguousarray(out[0, :, :, 0])
        if not shadow.failed() and source.checked:
            theirs: Pixels = shadow.timed(lambda: np.asarray(self.by_pillow()))
            if not shadow.agree(pixels, theirs, source.name):
                return theirs
        pixels.flags.writeable = False
        if as_stored:
            source.pixels = pixels
        return pixels

    def image(self) -> Image.Image:
        """Make it an image of Pillow's, which may be changed. Raises Pillow's errors."""
        if self.source.pixels is None and not self.calls:  # the kernel's pixels would be copied: gray is 10 % slower
            self.note()
            fresh = Source(self.source.data, self.source.size, self.source.name, checked=False)
            return Part.whole(fresh, self.mode).by_pillow()
        image = Image.new(self.mode, self.size, None)
        image.frombytes(self.array().data)
        return image

    def note(self) -> None:
        """Note that it is decoded where the script uses it."""
        notes.count("whole" if self.is_whole else "part")
        if self.is_whole:
            notes.notes().decoded_whole_by_line[notes.line_of_script()] += 1


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
