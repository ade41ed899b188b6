"""Lazy images: Pillow's own classes, which note what is asked and decode at the first use of their pixels.

Every method of Pillow that needs pixels reads `_im`. Here that is a property, so what this module does not know decodes
and goes on as ever. Metadata that only Pillow's parser knows are missing attributes until one of them is used.
"""

from __future__ import annotations

import copyreg
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property, wraps
from typing import IO, Any, cast
from weakref import WeakValueDictionary

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile, jpeg_factory

from iofast import kernel
from iofast.errors import DecodeError
from iofast.kernel import markers
from iofast.kernel.contract import TURNED
from iofast.run import colours, notes, shadow
from iofast.run.plan import Plan
from iofast.run.source import Part, Source

_set_class = cast(Any, object.__dict__["__class__"]).__set__
_EXIF = (b"Exif\0\0", b"ns.adobe.com/xap")
_HEAD = 1 << 17
_MPF = b"MPF\0"  # several pictures in one file
_alive: WeakValueDictionary[int, _Lazy] = WeakValueDictionary()  # by id: images are not hashable
_DIRECT = {"RGB", "L", "HSV", "YCbCr", "CMYK", "RGBA"}  # modes that Pillow converts from and to RGB in one call


class LazyPixelAccess:
    """What `load` returns: Pillow's access to pixels as soon as it is used."""

    def __init__(self, image: Image.Image) -> None:
        self._image = image

    @cached_property
    def _real(self) -> Any:
        return getattr(self._image, "_im", None) and Image.Image.load(self._image)

    def __getitem__(self, place: Any) -> Any:
        return self._real[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self._real[place] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _noting(name: str) -> Any:
    """Return the method of Pillow of this name, which a lazy image only notes if it can."""
    real = getattr(Image.Image, name)

    @wraps(real)
    def method(self: _Lazy, *given: Any, **named: Any) -> Image.Image:
        noted = self.noted(None, name, given, named)
        return real(self, *given, **named) if noted is None else noted

    return method


class _Lazy(Image.Image):
    """The common part. `_pending` is None as soon as there are pixels that a script may change."""

    _poses_as: type = Image.Image
    _data: bytes  # of the whole file
    _pending: Part | None = None
    _core: Any = None
    # Pillow's own, as `Image.Image()` has them
    palette = None
    _exif: Any = None
    _readonly = 0

    @property
    def _im(self) -> Any:
        if (pending := self._pending) is not None:
            self._release()
            self._im = pending.image().im
            self._readonly = 0
        return self._core

    @_im.setter
    def _im(self, im: Any) -> None:
        self._core, self._pending = im, None

    if not isinstance(Image.Image.__dict__.get("im"), property):  # Pillow before 11
        im = _im

    @property
    def __class__(self) -> type:
        return self._poses_as

    @__class__.setter
    def __class__(self, kind: type) -> None:  # fastai makes images its own by assigning their class
        im, info = self._im, self.info
        own = vars(Image.Image()) | vars(self) | {"info": info}
        for name in ("_core", "_pending", "_data"):
            own.pop(name, None)
        _set_class(self, kind)
        self.__dict__ = own
        self.im = im

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if (pending := self._pending) is None:
            return cast(dict[str, Any], cast(Any, Image.Image).__array_interface__.fget(self))
        self._release()
        pixels = pending.array()
        if self._mode == "RGB" and self._pending is pending:  # what is noted next starts from these pixels
            known = Source(b"", self._size, pending.source.name, checked=pending.source.checked, pixels=pixels)
            self._pending = Part(known, Plan.whole("RGB", self._size))
        return {"version": 3, "shape": pixels.shape, "typestr": "|u1", "data": pixels}

    def __reduce_ex__(self, protocol: Any) -> Any:  # an ordinary image at the other end, which may lack iofast
        return copyreg._reconstructor, (self._poses_as, object, None), self.__getstate__()  # type: ignore[attr-defined]

    def _release(self) -> None:
        """Close the file, as Pillow does when it loads an image."""

    def _new(self, im: Any) -> Image.Image:
        """Return a new image with known pixels. Pillow's own copies `info`, for which the file would be parsed."""
        if "info" in self.__dict__ or im.mode in ("P", "PA"):
            return cast(Image.Image, cast(Any, super())._new(im))
        new = LazyImage.__new__(LazyImage)
        new.__dict__.update(_mode=im.mode, _size=im.size, _data=self._data, _core=im)
        return new

    def load(self) -> Any:
        if self._pending is None:
            return super().load()
        self._release()
        self._readonly = 0
        return LazyPixelAccess(self)

    @property
    def readonly(self) -> Any:
        return (self._core and self._core.readonly) or self._readonly

    @readonly.setter
    def readonly(self, value: Any) -> None:
        self._readonly = value

    def noted(
        self, module: str | None, name: str, given: Sequence[Any], named: Mapping[str, Any]
    ) -> Image.Image | None:
        """Return the image after an operation, described as for `Part.after`; None where Pillow has to do it."""
        pending = self._pending and self._pending.after(module, name, given, named)
        if pending is None:
            return None
        self._release()
        new: Image.Image = _lazy(LazyImage, pending, self._data)
        if name in colours.WITHOUT_INFO:
            new.info = {}
        elif "info" in self.__dict__:
            new.info = getattr(self, "_copy_info", self.info.copy)()
        return new

    def convert(self, mode: str | None = None, *more: Any, **named: Any) -> Image.Image:
        unread = "info" not in self.__dict__  # a JPEG has no transparency, and Pillow would parse the file to find out
        if unread or "transparency" not in self.info:
            if (noted := self.noted(None, "convert", (mode, *more), named)) is not None:
                return noted
            if unread and not more and not named and "RGB" in (mode, self._mode) and {mode, self._mode} <= _DIRECT:
                return self._new(self.im.convert(mode, Image.Dither.FLOYDSTEINBERG))
        return super().convert(mode, *more, **named)

    copy = __copy__ = _noting("copy")
    crop, resize, transpose = _noting("crop"), _noting("resize"), _noting("transpose")
    filter, transform, point = _noting("filter"), _noting("transform"), _noting("point")


class LazyImage(_Lazy):
    """What `convert`, `crop`, `resize` and the like return."""

    def __getattr__(self, name: str) -> Any:  # only `info` is missing, until it is used
        if name != "info" or "_data" not in self.__dict__:
            raise AttributeError(f"{Image.Image.__name__!r} object has no attribute {name!r}")
        self.info = JpegImageFile(io.BytesIO(self._data)).info
        return self.info


class LazyJpeg(_Lazy, JpegImageFile):
    """An opened JPEG file. What only Pillow's parser does makes it the object that Pillow would have made."""

    _poses_as = JpegImageFile
    _fp: Any = None
    tile: Any = []  # noqa: RUF012  # Pillow replaces it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_data" not in self.__dict__ or "info" in self.__dict__:
            raise AttributeError(f"{JpegImageFile.__name__!r} object has no attribute {name!r}")
        self.__dict__ = vars(self._by_pillow()) | {"tile": []} | self.__dict__
        return getattr(self, name)

    def _by_pillow(self) -> JpegImageFile:
        return JpegImageFile(io.BytesIO(self._data), self.filename)

    def draft(self, mode: Any, size: Any) -> Any:  # decodes at a smaller scale: other pixels
        return self._become_ordinary().draft(mode, size)

    def thumbnail(self, *given: Any, **named: Any) -> None:
        self._become_ordinary().thumbnail(*given, **named)

    def _become_ordinary(self) -> JpegImageFile:
        own = vars(self._by_pillow())
        _set_class(self, JpegImageFile)
        self.__dict__ = own
        return self

    def getexif(self) -> Image.Exif:
        if self._exif is None and "info" not in self.__dict__ and not any(tag in self._data[:_HEAD] for tag in _EXIF):
            self._exif = Image.Exif()
            self._exif._loaded = True
            return cast(Image.Exif, self._exif)
        return super().getexif()

    def _release(self) -> None:
        if self.fp is not None and self._exclusive_fp:
            self.fp.close()
        self.fp = None


def pending_of(image: object) -> Part | None:
    """Return what an RGB image is made from; None if it is not lazy."""
    return image._pending if type(image) in (LazyImage, LazyJpeg) and image._mode == "RGB" else None  # type: ignore[attr-defined]


def _lazy(kind: type[_Lazy], pending: Part, data: bytes, **more: Any) -> Any:
    """Return a lazy image from a file with these bytes."""
    image: Any = kind.__new__(kind)
    image.__dict__.update(_mode=pending.plan.mode, _size=pending.plan.size, _data=data, _pending=pending, **more)
    _alive[id(image)] = image
    return image


def decode_kept() -> None:
    """Decode the images that the script keeps, where Pillow would have their pixels by now.

    At the start of a loop over a DataLoader: else its workers would decode them again, each of them in each epoch.
    """
    for image in list(_alive.values()):
        if image._pending is not None and getattr(image, "fp", None) is None:  # not one that was only opened
            with suppress(Exception):  # where the script uses it, it gets this error
                _ = image.im


def open_jpeg(fp: IO[bytes], filename: Any = None) -> JpegImageFile:
    """Return a `LazyJpeg`, or Pillow's image of a file that the kernel does not decode. A factory of Pillow's."""
    data = fp.read()
    plan = None if shadow.failed() else _plan(data)
    if plan is None:
        notes.count("left to Pillow")
        fp.seek(0)
        return jpeg_factory(fp, filename)
    notes.count("lazy")
    notes.write_sometimes()
    name = filename or getattr(fp, "name", "") or "an image in memory"
    name = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    source = Source(data, plan.size, name, checked=None)
    more = {"_readonly": 1, "fp": fp, "filename": filename or "", "_exclusive_fp": False}
    return cast(JpegImageFile, _lazy(LazyJpeg, Part(source, plan), data, **more))


def _plan(data: bytes) -> Plan | None:
    """Return the plan of a whole file, with Pillow's size and mode; None for a file that Pillow has to open."""
    try:
        header = kernel.read_header(data)
    except DecodeError:
        return None
    if header.format != "jpeg" or header.components not in (1, 3):
        return None
    behind = markers.header_size(data)
    if data.find(_MPF, 0, behind) >= 0 or data.rfind(markers.END, behind) < 0:
        return None
    size = header.width, header.height  # Pillow's is of the stored pixels
    return Plan.whole("L" if header.components == 1 else "RGB", size[::-1] if header.orientation in TURNED else size)
