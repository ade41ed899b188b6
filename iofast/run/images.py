"""Lazy images: Pillow's own classes, which note what is asked and decode at the first use of their pixels.

Every method of Pillow that needs pixels reads `_im`. Here that is a property, so what this module does not know decodes
and goes on as ever. Metadata that only Pillow's parser knows are missing attributes until one of them is used.
"""

from __future__ import annotations

import copyreg
import io
from copy import copy as copied
from operator import methodcaller
from typing import Any, cast

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from iofast.run import colours, notes
from iofast.run.colours import Call
from iofast.run.plan import Plan
from iofast.run.source import Part, Pixels, Source, array_of

_set_class = cast(Any, object.__dict__["__class__"]).__set__
_OWN = ("_im", "_mode", "_size", "fp", "_fp", "_exif", "_readonly", "im", "pyaccess")  # not Pillow's parser's
_EXIF = (b"Exif\0\0", b"ns.adobe.com/xap")
_HEAD = 1 << 17


class LazyPixelAccess:
    """What `load` returns: Pillow's access to pixels as soon as it is used."""

    __slots__ = ("_image", "_real")

    def __init__(self, image: Image.Image) -> None:
        self._image = image
        self._real: Any = None

    def _access(self) -> Any:
        if self._real is None:
            self._real = getattr(self._image, "_im", None) and Image.Image.load(self._image)
        return self._real

    def __getitem__(self, place: Any) -> Any:
        return self._access()[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self._access()[place] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._access(), name)


def fields(mode: str, size: tuple[int, int], data: bytes, pending: Part | None) -> dict[str, Any]:
    """Return the attributes of a lazy image from a file with these bytes."""
    return {
        "_mode": mode,
        "_size": size,
        "palette": None,
        "_readonly": 0,
        "_exif": None,
        "_data": data,
        "_pending": pending,
        "_pixels": None,
        "_core": None,
    }


class _Lazy(Image.Image):
    """The common part. `_pending` is None as soon as there are pixels that a script may change."""

    _poses_as: type = Image.Image
    _data: bytes

    @property
    def _im(self) -> Any:
        if (pending := self.__dict__.get("_pending")) is not None:
            self._release()
            pixels = self._decoded(pending)
            height, width = pixels.shape[:2]
            self._im = Image.frombytes(self._mode, (width, height), pixels.data).im
            self.__dict__["_readonly"] = 0
        return self.__dict__.get("_core")

    @_im.setter
    def _im(self, im: Any) -> None:
        self.__dict__.update(_core=im, _pending=None, _pixels=None)

    if not isinstance(Image.Image.__dict__.get("im"), property):  # Pillow before 11
        im = _im

    def _decoded(self, pending: Part) -> Pixels:
        """Return the pixels, read-only. Raises Pillow's errors."""
        pixels: Pixels | None = self.__dict__.get("_pixels")
        if pixels is None:
            decodes = bool(pending.source.data)  # else its pixels are known
            if decodes:
                notes.count("whole" if pending.plan.is_whole else "part")
            if decodes and pending.plan.is_whole:
                notes.notes().whole[notes.line_of_script()] += 1
            pixels = array_of(pending, self._mode)
            pixels.flags.writeable = False
            self.__dict__["_pixels"] = pixels
        return pixels

    @property
    def __class__(self) -> type:
        return self._poses_as

    @__class__.setter
    def __class__(self, kind: type) -> None:  # fastai makes images its own by assigning their class
        im, info = self._im, self.info
        _set_class(self, kind)
        for name in ("_core", "_pending", "_pixels", "_data"):
            self.__dict__.pop(name, None)
        self.__dict__.update(_im=im, info=info)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        pending = self._waiting()
        if pending is None:
            return cast(dict[str, Any], cast(Any, Image.Image).__array_interface__.fget(self))
        self._release()
        pixels = self._decoded(pending)
        return {"version": 3, "shape": pixels.shape, "typestr": "|u1", "data": pixels}

    def _release(self) -> None:
        """Close the file, as Pillow does when it loads an image."""

    def _waiting(self) -> Part | None:
        return self.__dict__.get("_pending")

    def _later(self, pending: Part, mode: str | None = None) -> Image.Image:
        self._release()
        new = LazyImage.__new__(LazyImage)
        new.__dict__.update(fields(mode or self._mode, pending.plan.size, self._data, pending))
        if "info" in self.__dict__:
            new.info = _info_of(self)
        return new

    def _new(self, im: Any) -> Image.Image:
        """Return a new image with known pixels. Pillow's own copies `info`, for which the file would be parsed."""
        if "info" in self.__dict__ or im.mode in ("P", "PA"):
            return cast(Image.Image, cast(Any, super())._new(im))
        new = LazyImage.__new__(LazyImage)
        new.__dict__.update(fields(im.mode, im.size, self._data, None), _core=im)
        return new

    def load(self) -> Any:
        return super().load() if self._waiting() is None else LazyPixelAccess(self)

    @property
    def readonly(self) -> Any:
        if self._waiting() is not None or not isinstance(Image.Image.__dict__.get("readonly"), property):
            return self.__dict__.get("_readonly", 0)
        return cast(Any, Image.Image).readonly.fget(self)

    @readonly.setter
    def readonly(self, value: Any) -> None:
        self.__dict__["_readonly"] = value

    def _base(self) -> Part | None:
        """Return what is pending of an RGB image; if its pixels are known, from them."""
        pending, pixels = self._waiting(), self.__dict__.get("_pixels")
        if pending is None or self._mode != "RGB":
            return None
        if pixels is None:
            return pending
        source = Source(b"", self.size, pending.source.name, checked=pending.source.checked)
        source.pixels = pixels
        return Part(source, Plan.whole(self.size))

    def convert(self, mode: str | None = None, *more: Any, **named: Any) -> Image.Image:
        pending = self._waiting()
        if pending is None or more or named or "transparency" in self.__dict__.get("info", ()):
            return super().convert(mode, *more, **named)
        if mode in (None, self._mode):
            return self._later(pending)
        if (self._mode, mode) == ("L", "RGB"):
            return self._later(pending.then(pending.plan, methodcaller("convert", mode)), mode)
        if (self._mode, mode) != ("RGB", "L"):
            return super().convert(mode)
        if pending.plan.is_whole:  # Pillow's gray of a whole image is as fast
            return self._new(self.im.convert(mode, Image.Dither.FLOYDSTEINBERG))
        return self.step(colours.LUMA, methodcaller("convert", mode), mode=mode) or super().convert(mode)

    def copy(self) -> Image.Image:
        pending = self._base() or self._waiting()
        return super().copy() if pending is None else self._later(pending)

    __copy__ = copy

    def crop(self, box: Any = None) -> Image.Image:
        pending = self._waiting()
        plan = None if pending is None else pending.plan if box is None else pending.plan.crop(box)
        if pending is None or plan is None:
            return super().crop(box)
        return self._later(pending.then(plan, None if box is None else methodcaller("crop", tuple(box))))

    def resize(self, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Image.Image:
        pending, plan = self._waiting(), None
        if pending is not None and box is None and reducing_gap is None:
            width, height = (int(side) for side in size)
            filter = Image.Resampling.BICUBIC if resample is None else resample
            plan = pending.plan if (width, height) == self.size else pending.plan.resize((width, height), filter)
        if pending is None or plan is None:
            return super().resize(size, resample, box, reducing_gap)
        return self._later(pending.then(plan, methodcaller("resize", tuple(size), resample)))

    def transpose(self, method: Any) -> Image.Image:
        pending = self._waiting()
        plan = None if pending is None else pending.plan.transpose(method)
        if pending is None or plan is None:
            return super().transpose(method)
        return self._later(pending.then(plan, methodcaller("transpose", method)))

    def filter(self, filter: Any) -> Image.Image:
        step = colours.blur(filter)
        return (step and self.step(step, methodcaller("filter", copied(filter)))) or super().filter(filter)

    def transform(
        self,
        size: Any,
        method: Any,
        data: Any = None,
        resample: Any = Image.Resampling.NEAREST,
        *more: Any,
        **named: Any,
    ) -> Image.Image:
        moved = None
        if method == Image.Transform.AFFINE and tuple(size) == self.size and not more and named.keys() <= {"fillcolor"}:
            step = colours.affine(self.size, data, resample, named.get("fillcolor"))
            moved = step and self.step(
                step, methodcaller("transform", self.size, method, tuple(data), resample, **named)
            )
        return moved or super().transform(size, method, data, resample, *more, **named)

    def point(self, lut: Any, mode: Any = None) -> Image.Image:
        step = None if mode else colours.add_below(lut)
        return (step and self.step(step, methodcaller("point", list(lut)))) or super().point(lut, mode)

    def step(self, step: colours.Colour, call: Call, *, mode: str = "RGB", info: bool = True) -> Image.Image | None:
        """Return the image after an operation on colours, which Pillow does by `call`; None if it is not lazy RGB.

        Without `info` the new image has none.
        """
        if (pending := self._base()) is None:
            return None
        new = self._later(pending.then(pending.plan.step(step), call), mode)
        if not info:
            new.info = {}
        return new


class LazyImage(_Lazy):
    """What `convert`, `crop`, `resize` and the like return."""

    def __getattr__(self, name: str) -> Any:  # only `info` is missing, until it is used
        if name != "info" or "_data" not in self.__dict__:
            raise AttributeError(f"{Image.Image.__name__!r} object has no attribute {name!r}")
        self.info = JpegImageFile(io.BytesIO(self._data)).info
        return self.info

    def __reduce_ex__(self, protocol: Any) -> Any:  # an ordinary image at the other end, which may lack iofast
        return copyreg._reconstructor, (Image.Image, object, None), Image.Image.__getstate__(self)  # type: ignore[attr-defined]


class LazyJpeg(_Lazy, JpegImageFile):
    """An opened JPEG file."""

    _poses_as = JpegImageFile

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_data" not in self.__dict__ or "info" in self.__dict__:
            raise AttributeError(f"{JpegImageFile.__name__!r} object has no attribute {name!r}")
        real = JpegImageFile(io.BytesIO(self._data), self.filename)
        for key, value in real.__dict__.items():
            if key not in _OWN:
                self.__dict__.setdefault(key, value)
        self.__dict__["tile"] = []
        return getattr(self, name)

    def _become_ordinary(self) -> JpegImageFile:
        """From here on this is the object that Pillow would have made."""
        real = JpegImageFile(io.BytesIO(self._data), self.filename)
        _set_class(self, JpegImageFile)
        self.__dict__ = real.__dict__
        return self

    def draft(self, mode: Any, size: Any) -> Any:  # decodes at a smaller scale: other pixels
        return self._become_ordinary().draft(mode, size)

    def thumbnail(self, *given: Any, **named: Any) -> None:
        self._become_ordinary().thumbnail(*given, **named)

    def load(self) -> Any:
        self._release()
        self.__dict__["_readonly"] = 0
        return super().load()

    def getexif(self) -> Image.Exif:
        if self._exif is None and "info" not in self.__dict__ and not any(tag in self._data[:_HEAD] for tag in _EXIF):
            self._exif = Image.Exif()
            self._exif._loaded = True
            return self._exif
        return super().getexif()

    def verify(self) -> None:
        self._release()

    def close(self) -> None:
        self._release()
        Image.Image.close(self)

    def __exit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        if self.fp is not None and self._exclusive_fp:
            self.fp.close()
        self.fp = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        return copyreg._reconstructor, (JpegImageFile, object, None), self.__getstate__()  # type: ignore[attr-defined]


def pending_of(image: object) -> Part | None:
    """Return what an RGB image is made from; None if it is not lazy."""
    return cast(_Lazy, image)._base() if type(image) in (LazyImage, LazyJpeg) else None


def _info_of(image: Image.Image) -> dict[Any, Any]:
    copied: dict[Any, Any] = getattr(image, "_copy_info", image.info.copy)()
    return copied
