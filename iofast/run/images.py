"""Lazy images: Pillow's own classes, which note what is asked and decode at the first use of their pixels.

Every method of Pillow that needs pixels reads `_im`. Here that is a property, so what this module does not know decodes
and goes on as ever. Metadata that only Pillow's parser knows are missing attributes until one of them is used.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, cast
from weakref import WeakValueDictionary

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile, jpeg_factory

from iofast import kernel
from iofast.errors import DecodeError
from iofast.kernel import markers
from iofast.kernel.contract import TURNED
from iofast.run import colours, notes, shadow
from iofast.run.noting import is_lazy, noting
from iofast.run.parts import Part, Size, Source

if kernel.backend != "native":
    raise ImportError("the native kernel is missing")

_set_class = cast(Any, object.__dict__["__class__"]).__set__
_EXIF = (b"Exif\0\0", b"ns.adobe.com/xap")
_HEAD = 1 << 17
_MPF = b"MPF\0"  # several pictures in one file
_alive: WeakValueDictionary[int, LazyImage] = WeakValueDictionary()  # by id: images are not hashable


class LazyPixelAccess:
    """What `load` returns: Pillow's access to pixels, which are decoded as soon as it is used."""

    def __init__(self, image: Image.Image) -> None:
        self._image = image

    def __getitem__(self, place: Any) -> Any:
        return cast(Any, Image.Image.load(self._image))[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        cast(Any, Image.Image.load(self._image))[place] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(Image.Image.load(self._image), name)


class LazyImage(Image.Image):
    """What `convert`, `crop` and `resize` return. With the first use of its pixels it becomes Pillow's own object."""

    _poses_as: type[Image.Image] = Image.Image
    _data: bytes  # of the whole file
    _pending: Part
    # Pillow's own, as `Image.Image()` has them
    palette = None
    _exif: Any = None
    _readonly = 0
    readonly = cast(Any, property(lambda self: self._readonly))

    @property
    def _im(self) -> Any:
        if (pending := vars(self).get("_pending")) is not None:
            try:
                self._release()
                made = pending.image()
                self._have(made.im, made if isinstance(made, JpegImageFile) else self._parsed())
            except AttributeError:
                if is_lazy(self):  # else another thread was faster
                    raise
        return vars(self)["_im"]

    @_im.setter
    def _im(self, im: Any) -> None:
        self._have(im, self._parsed())

    if not isinstance(Image.Image.__dict__.get("im"), property):  # Pillow before 11
        im = _im

    def _have(self, im: Any, parsed: JpegImageFile) -> None:
        self._become_ordinary(self._metadata(parsed) | vars(self) | {"_im": im, "_readonly": 0})

    def _become_ordinary(self, attributes: dict[str, Any]) -> None:
        vars(self).update(attributes)
        _set_class(self, self._poses_as)
        for name in ("_pending", "_data"):
            vars(self).pop(name, None)

    def _parsed(self) -> JpegImageFile:
        return JpegImageFile(io.BytesIO(self._data), vars(self).get("filename"))

    def _metadata(self, parsed: JpegImageFile) -> dict[str, Any]:
        """Return the attributes that Pillow's image has, of a file that Pillow has parsed."""
        return vars(Image.Image()) | {"info": parsed.info}

    def __getattr__(self, name: str) -> Any:  # metadata are missing until one of them is used
        if name.startswith("__") or "_data" not in vars(self) or "info" in vars(self):
            raise AttributeError(f"{self._poses_as.__name__!r} object has no attribute {name!r}")
        vars(self).update(self._metadata(self._parsed()) | vars(self))
        return getattr(self, name)

    @property
    def __class__(self) -> type:
        return self._poses_as

    @__class__.setter
    def __class__(self, kind: type) -> None:  # fastai makes images its own by assigning their class
        _ = self.im
        self.__class__ = kind  # of what is ordinary now

    @property
    def __array_interface__(self) -> dict[str, Any]:
        self._release()
        pixels = (pending := self._pending).array()
        if self._mode == "RGB" and pending.source.data:
            known = Source(b"", self._size, pending.source.name, pending.source.checked)
            known.pixels = pixels
            self._pending = Part.whole(known, "RGB")
        return {"version": 3, "shape": pixels.shape, "typestr": "|u1", "data": pixels}

    def __reduce_ex__(self, protocol: Any) -> Any:  # an ordinary image at the other end, which may lack iofast
        _ = self.im
        return self.__reduce_ex__(protocol)

    def _release(self) -> None:
        """Close the file, as Pillow does when it loads an image."""

    def load(self) -> Any:
        self._release()
        self._readonly = 0
        return LazyPixelAccess(self)

    def noted(self, function: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]) -> Image.Image | None:
        """Return the image after an operation, described as for `Part.after`; None where Pillow has to do it."""
        pending = self._pending.after(function, given, named)
        if pending is None:
            return None
        self._release()
        new: Image.Image = _lazy(LazyImage, pending, self._data)
        if function.__name__ in colours.WITHOUT_INFO:
            new.info = {}
        elif "info" in vars(self):
            new.info = getattr(self, "_copy_info", self.info.copy)()
        return new

    def convert(self, mode: str | None = None, *more: Any, **named: Any) -> Image.Image:
        known = "transparency" not in vars(self).get("info", ())  # a JPEG has none: it is not parsed to find out
        if known and (noted := self.noted(Image.Image.convert, (mode, *more), named)) is not None:
            return noted
        _ = self.im
        return self.convert(mode, *more, **named)

    copy = __copy__ = noting(Image.Image.copy)
    crop, resize, transpose, filter, transform, point = (
        noting(getattr(Image.Image, name)) for name in ("crop", "resize", "transpose", "filter", "transform", "point")
    )


class LazyJpeg(LazyImage, JpegImageFile):
    """An opened JPEG file."""

    _poses_as = JpegImageFile
    _fp: Any = None
    tile: Any = []  # noqa: RUF012  # Pillow replaces it

    def _metadata(self, parsed: JpegImageFile) -> dict[str, Any]:
        return vars(parsed) | {"tile": []}

    def draft(self, mode: Any, size: Any) -> Any:
        if self.fp is not None:  # no pixels were wanted yet: Pillow may decode at a smaller scale, to other ones
            self._become_ordinary(vars(self._parsed()))
        return JpegImageFile.draft(self, mode, size)

    def getexif(self) -> Image.Exif:
        if self._exif is None and "info" not in vars(self) and not any(tag in self._data[:_HEAD] for tag in _EXIF):
            self._exif = Image.Exif()
            self._exif._loaded = True
            return cast(Image.Exif, self._exif)
        return super().getexif()

    def _release(self) -> None:
        if self.fp is not None and self._exclusive_fp:
            self.fp.close()
        self.fp = None


def _lazy(kind: type[LazyImage], pending: Part, data: bytes, **more: Any) -> Any:
    """Return a lazy image from a file with these bytes."""
    image: Any = kind.__new__(kind)
    image.__dict__.update(_mode=pending.mode, _size=pending.size, _data=data, _pending=pending, **more)
    _alive[id(image)] = image
    return image


def decode_kept() -> None:
    """Decode the images that the script keeps, where Pillow would have their pixels by now.

    At the start of a loop over a DataLoader: else its workers would decode them again, each of them in each epoch.
    """
    for image in list(_alive.values()):
        if is_lazy(image) and getattr(image, "fp", None) is None:  # not one that was only opened
            with suppress(Exception):  # where the script uses it, it gets this error
                _ = image.im


def open_jpeg(fp: IO[bytes], filename: Any = None) -> JpegImageFile:
    """Return a `LazyJpeg`, or Pillow's image of a file that the kernel does not decode. A factory of Pillow's."""
    data = fp.read()
    header = None if shadow.failed() else _header(data)
    if header is None:
        notes.count("left to Pillow")
        fp.seek(0)
        return jpeg_factory(fp, filename)
    notes.count("lazy")
    notes.write_sometimes()
    name = filename or getattr(fp, "name", "") or "an image in memory"
    name = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    size, mode = header
    more = {"_readonly": 1, "fp": fp, "filename": filename or "", "_exclusive_fp": False}
    return cast(JpegImageFile, _lazy(LazyJpeg, Part.whole(Source(data, size, name), mode), data, **more))


def _header(data: bytes) -> tuple[Size, str] | None:
    """Return Pillow's size and mode of a file; None for one that Pillow has to open."""
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
    return size[::-1] if header.orientation in TURNED else size, "L" if header.components == 1 else "RGB"
