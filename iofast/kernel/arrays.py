"""Files of arrays: `.npy`, and TIFFs that Pillow cannot open. Images of 1 to 16 channels, uint8, uint16 or float32.

`.npy` is NumPy's own format (NEP 1). TIFFs are read by tifffile, which need not be installed.
"""

import io
import logging
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image

from iofast.kernel.contract import MAX_BYTES, TURNED, Header, Status, StatusError, beyond, check_size
from iofast.kernel.payload import Payload, stream

Pixels = NDArray[Any]  # (height, width, channels)

MAX_CHANNELS = 16  # of an image
MAGIC = b"\x93NUMPY"
TYPES = ("uint8", "uint16", "float32")
INSTALL = "pip install iofast[arrays]"  # tifffile

_SILENT = logging.NullHandler()

_MAX_HEADER = 1 << 12  # bytes of the header of a .npy; one of three dimensions has 128
_ORIENTATION = 274  # TIFF tag
_NONE, _DEFLATE = 1, (8, 32946)  # compressions of a TIFF; others cannot be unpacked up to a limit
_LARGEST_SEGMENT = 1 << 24  # bytes that a strip or tile may have beyond the image: a tile of 512 x 512 x 16 samples


def npy_header(data: Payload) -> Header:
    """Read the header of a `.npy`. Raises `StatusError` if it is no image."""
    (height, width, channels), _, dtype, _ = _npy_layout(data)
    return Header("npy", width, height, 1, channels, False, type=dtype.name)


def read_npy(data: bytes, max_pixels: int) -> Pixels:
    """Return the pixels of a `.npy`, a view of `data` if its order is C's. Raises `StatusError`."""
    shape, fortran, dtype, start = _npy_layout(data)
    _check_limits(npy_header(data), max_pixels)
    count = shape[0] * shape[1] * shape[2]
    if len(data) - start != count * dtype.itemsize:
        status = Status.TRUNCATED if len(data) - start < count * dtype.itemsize else Status.CORRUPT
        raise StatusError(status, f"{count * dtype.itemsize} bytes of pixels expected, found {len(data) - start}")
    flat = np.frombuffer(data, dtype, count, start)
    pixels = flat.reshape(shape[::-1]).transpose() if fortran else flat.reshape(shape)
    return pixels.astype(dtype.newbyteorder("="), copy=False)


def write_npy(pixels: Pixels) -> bytes:
    """Return (height, width, channels) as a `.npy` of version 1.0, little endian, in C order; gray has two axes."""
    out = io.BytesIO()
    plain = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    npy.write_array(out, np.ascontiguousarray(plain, plain.dtype.newbyteorder("<")), (1, 0), allow_pickle=False)
    return out.getvalue()


def tiff_header(data: Payload) -> Header:
    """Read the header of the first page of a TIFF. Raises `StatusError` if it is no image of `TYPES`."""
    with _first_page(data) as page:
        return _tiff_layout(page)


def read_tiff(data: bytes, max_pixels: int) -> tuple[Pixels, int]:
    """Return the pixels of the first page of a TIFF as stored, and its orientation. Raises `StatusError`."""

    with _first_page(data) as page:
        header = _tiff_layout(page)
        _check_limits(header, max_pixels)
        _check_segments(page, data, header)
        pixels = np.asarray(page.asarray(maxworkers=1))  # threads of its own would come on top of the loader's
        pixels = pixels if pixels.ndim == 3 else pixels[:, :, None]
        return (pixels.transpose(1, 2, 0) if page.axes == "SYX" else pixels), header.orientation


def displayed(data: bytes, max_pixels: int) -> Image.Image:
    """Return a `.npy` as Pillow's image: gray of 8 or 16 bits, RGB or RGBA by their upper 8. Raises `StatusError`."""
    pixels = read_npy(data, max_pixels)
    channels, kind = pixels.shape[2], pixels.dtype.name
    if kind != "float32" and channels in (1, 3, 4):
        upper = (pixels >> 8).astype(np.uint8) if kind == "uint16" and channels > 1 else pixels
        return Image.fromarray(np.ascontiguousarray(upper if channels > 1 else upper[:, :, 0]))
    raise StatusError(
        Status.UNSUPPORTED,
        f"an array of {named(channels, kind)}: pack it with --format npy, fields=['image.npy'] loads it",
    )


def padded(pixels: Pixels, canvas: tuple[int, int], fill: int | tuple[int, ...]) -> Pixels:
    """Centre an array (height, width, …) on a canvas, (width, height), of `fill`, unless it covers it."""
    height, width = pixels.shape[:2]
    if (width, height) == canvas:
        return pixels
    whole = np.full((canvas[1], canvas[0], *pixels.shape[2:]), fill, pixels.dtype)
    top, left = (canvas[1] - height) // 2, (canvas[0] - width) // 2
    whole[top : top + height, left : left + width] = pixels
    return whole


def named(channels: int, kind: str) -> str:
    """`13 channels of uint16`."""
    return f"{channels} channel{'s' * (channels > 1)} of {kind}"


def _npy_layout(data: Payload) -> tuple[tuple[int, int, int], bool, np.dtype[Any], int]:
    """Shape (height, width, channels), whether it is in Fortran's order, type, and where the pixels begin."""
    start = io.BytesIO(data[:_MAX_HEADER])
    try:
        version = npy.read_magic(start)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(start, max_header_size=_MAX_HEADER)
    except ValueError as error:
        status = Status.TRUNCATED if len(data) < _MAX_HEADER else Status.CORRUPT
        raise StatusError(status, " ".join(str(error).split())[:200]) from None
    sides = shape if len(shape) == 3 else (*shape, 1)
    if len(sides) != 3 or dtype.name not in TYPES or not 1 <= sides[2] <= MAX_CHANNELS or min(sides) < 1:
        expected = f"expected (height, width) or (height, width, 1 to {MAX_CHANNELS}) of {', '.join(TYPES)}"
        raise StatusError(Status.UNSUPPORTED, f"an array of shape {shape} and {dtype.name} is no image: {expected}")
    height, width, channels = map(int, sides)
    return (height, width, channels), fortran, dtype, start.tell()


@contextmanager
def _first_page(data: Payload) -> Iterator[Any]:
    """The first page of a TIFF. Raises `StatusError`, also for what is raised while it is read."""
    try:
        import tifffile
    except ImportError:
        raise StatusError(
            Status.UNSUPPORTED, f"Pillow does not read a TIFF of this kind without loss: {INSTALL}"
        ) from None
    logging.getLogger("tifffile").addHandler(_SILENT)  # else damage, which becomes an error here, is also printed
    try:
        with tifffile.TiffFile(stream(data)) as file:
            yield file.pages[0]
    except StatusError:
        raise
    except Exception as error:  # tifffile raises anything on damaged files
        raise StatusError(Status.CORRUPT, " ".join(str(error).split())[:200] or type(error).__name__) from error


def _tiff_layout(page: Any) -> Header:
    shape, axes, kind = page.shape, page.axes, getattr(page.dtype, "name", "an unknown type")
    sides = {"YX": (*shape, 1), "YXS": shape, "SYX": (*shape[1:], shape[0])}.get(axes, ())
    if len(sides) != 3 or kind not in TYPES or not 1 <= sides[2] <= MAX_CHANNELS:
        expected = f"expected 1 to {MAX_CHANNELS} channels of {', '.join(TYPES)}"
        raise StatusError(Status.UNSUPPORTED, f"a TIFF of shape {shape} ({axes}) and {kind}: {expected}")
    tag = page.tags.get(_ORIENTATION)
    orientation = int(tag.value) if tag is not None and tag.value in range(1, 9) else 1
    height, width, channels = map(int, sides)
    size = (height, width) if orientation in TURNED else (width, height)
    return Header("tiff", *size, orientation, channels, False, type=kind)


def _check_segments(page: Any, data: bytes, header: Header) -> None:
    """Raise `StatusError` for strips and tiles that would unpack to more than the header says."""
    across = page.tilewidth if page.is_tiled else page.imagewidth
    down = page.tilelength if page.is_tiled else min(page.rowsperstrip, page.imagelength)
    samples = header.components if page.planarconfig == 1 else 1
    size = int(across) * int(down) * samples * np.dtype(header.type).itemsize
    if size > _LARGEST_SEGMENT + header.nbytes:
        raise beyond("bytes", f"strips or tiles of {size} bytes in a TIFF of {header.nbytes}")
    if page.compression not in (_NONE, *_DEFLATE):
        raise StatusError(
            Status.UNSUPPORTED, f"a TIFF of compression {int(page.compression)}: expected none or deflate"
        )
    for start, length in zip(page.dataoffsets, page.databytecounts, strict=True):
        unpacker = zlib.decompressobj()
        if page.compression in _DEFLATE and len(unpacker.decompress(data[start : start + length], size + 1)) > size:
            raise beyond("bytes", f"a strip or tile of more than {size} bytes")


def _check_limits(header: Header, max_pixels: int) -> None:
    check_size(header.width, header.height, max_pixels)
    if header.nbytes > MAX_BYTES:  # no loader would read it
        shown = f"{header.width}x{header.height} pixels of {named(header.components, header.type)}"
        raise beyond("bytes", f"{shown}, the limit is {MAX_BYTES} bytes")
