"""What the fields of a record hold besides its image: payload to value, and the values of a batch to a tensor.

The last part of a field's name says what it is, as in WebDataset: `boxes.json`, `seg.png`, `coarse.cls`. Payloads may
come from anyone: nothing is unpickled, sizes are checked before memory is taken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.containers.manifest import Manifest
from iofast.errors import DecodeError, OptionError, shown
from iofast.kernel import pillow
from iofast.kernel.contract import MAX_PIXELS
from iofast.record import IMAGE_FIELDS, RAW_FIELDS, holds_places, image_field

OF_IMAGE = ("image", "crop")  # what a sample with an image may consist of besides its record's fields
PSEUDO_FIELDS = (*OF_IMAGE, "label", "key", "index")  # and what every sample may
MAX_TEXT = 64 << 20  # bytes of JSON or text, as much as a manifest may have; JSON takes ten times that as objects

_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "avif")
_WIDER = {"u2": np.int32, "u4": np.int64}  # unsigned types that torch has in name only
_TENSORS = ("b1", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16")


def check_fields(fields: Sequence[str] | None, manifest: Manifest, where: str) -> tuple[str, ...] | None:
    """What a sample shall consist of, checked; None = image and label. Raises `OptionError` for what is not there."""
    has_image = image_field(manifest.fields) is not None or not manifest.count
    known = (*PSEUDO_FIELDS[0 if has_image else len(OF_IMAGE) :], *manifest.fields)
    if fields is None:
        if not has_image:
            raise OptionError(f"{where} has no images: say fields=, any of {', '.join(known)}")
        return None
    listed = isinstance(fields, Iterable) and not isinstance(fields, str) and getattr(fields, "shape", True) != ()
    names = tuple(fields) if listed else ()
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise OptionError(f"fields must be a list of names, each once, found {shown(fields)}")
    for name in names:
        if name not in known:
            raise OptionError(f"{where} has no field {name!r}, only {', '.join(known)}")
    return names


def annotation_fields(names: Iterable[str], manifest: Manifest) -> set[str]:
    """Those of `names` that hold places in the image: masks, and boxes and keypoints by the recipe or by their names.

    They are as packing made them follow its images: in pixels of the image as it is stored, upright.
    """
    merged = manifest.recipe.get("merged")
    recipes = [
        each for each in (merged if isinstance(merged, list) else [manifest.recipe]) if isinstance(each, Mapping)
    ]
    told = [each.get(option) for each in recipes for option in ("boxes", "keypoints")]
    return {name for name in names if name.endswith(".png") or holds_places(name) or name in told}


def decode_field(name: str, payload: bytes) -> Any:
    """The value in a payload, told by the last part of its field's name.

    `json` → what it says; `cls` → int; `txt`, `text` → str; `npy` → NumPy array; an image's suffix (`seg.png`) → its
    pixels as stored: uint8 (or uint16, bool) of shape (height, width) or (height, width, channels), palettes as
    numbers, EXIF ignored. Everything else → bytes: unknown names, pickled data, and the record's own image (`jpg`,
    `png`, `webp`, `rgb`, `yuv`), of which "image" is the pixels. Raises `DecodeError` naming the field.
    """
    decode = None if name in (*IMAGE_FIELDS, *RAW_FIELDS) else _DECODERS.get(name.rpartition(".")[2])
    if decode is None:
        return payload
    try:
        return decode(payload)
    except Exception as error:  # parsers of JSON and .npy raise a dozen kinds, and one payload must not end a batch
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DecodeError(f"field {name}: {reason:.200}") from None


def collate(values: Sequence[Any]) -> Any:
    """The values of one field in a batch as one: a tensor with a first dimension more, or a list.

    Whole numbers become int64, numbers with a fraction (1.0 is one) float32, truth values bool; lists of numbers (soft
    labels, boxes) likewise where all have the same shape; arrays and tensors of the same shape and type are stacked as
    they are. Everything else stays a list: text, bytes, mappings, None, and what differs in shape.
    """
    kinds = set(map(type, values))
    if kinds and kinds <= {torch.Tensor}:
        alike = len({(each.shape, each.dtype) for each in values}) == 1
        return torch.stack(list(values)) if alike else list(values)
    arrays = [value if isinstance(value, np.ndarray) else _numbers(value) for value in values]
    first = arrays[0] if arrays else None
    if first is None or not all(own is not None and own.shape == first.shape for own in arrays):
        return list(values)
    types = {own.dtype for own in arrays if own is not None}
    whole_and_not = types == {np.dtype(np.int64), np.dtype(np.float32)} and np.ndarray not in kinds
    if len(types) > 1 and not whole_and_not:
        return list(values)
    tensor = _tensor(np.stack(arrays))  # type: ignore[arg-type]
    if tensor is None:
        return list(values)
    return tensor.to(torch.float32) if whole_and_not else tensor


def _numbers(value: Any) -> NDArray[Any] | None:
    """A number, or a list of numbers of any depth, as an array: bool, int64 or float32. None for anything else."""
    if isinstance(value, list):
        kinds = set(map(type, value))
        if not kinds <= {bool, int, float}:
            own = [_numbers(each) for each in value] if kinds == {list} else [None]
            first = own[0]
            if first is None or any(each is None or each.shape != first.shape for each in own):
                return None
            return np.stack(own)  # type: ignore[arg-type]
    else:
        kinds = {type(value)}
    if kinds == {bool}:
        return np.asarray(value)
    if kinds == {int}:
        try:
            return np.asarray(value, np.int64)
        except OverflowError:
            return None
    if kinds in ({float}, {int, float}):
        try:
            return np.asarray(value, np.float64).astype(np.float32)
        except OverflowError:
            return None
    return None


def _tensor(array: NDArray[Any]) -> torch.Tensor | None:
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    kind = native.dtype.str[1:]
    if kind in _WIDER:
        native = native.astype(_WIDER[kind])
    elif kind not in _TENSORS:
        return None
    return torch.from_numpy(native)


def _json(payload: bytes) -> Any:
    return json.loads(_text(payload))


def _text(payload: bytes) -> str:
    if len(payload) > MAX_TEXT:
        raise DecodeError(f"{len(payload)} bytes are more than {MAX_TEXT}")
    return payload.decode("utf-8")


def _class(payload: bytes) -> int:
    if not payload.isdigit() or len(payload) > 10:
        raise DecodeError(f"a class index in decimal was expected, found {payload!r:.40}")
    return int(payload)


def _array(payload: bytes) -> NDArray[Any]:
    """A .npy file. NumPy's own reader takes memory for whatever shape the header claims, and pickles where told to."""
    stream = BytesIO(payload)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise DecodeError(f"version {version} of .npy is not understood, only 1.0 and 2.0")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise DecodeError("it holds pickled objects, which are never loaded")
    size, found = math.prod(shape) * dtype.itemsize, len(payload) - stream.tell()
    if size != found or min(shape, default=0) < 0:
        raise DecodeError(f"an array of shape {shape} and type {dtype} has {size} bytes, found {found}")
    flat = np.frombuffer(payload, dtype, offset=stream.tell()) if size else np.empty(math.prod(shape), dtype)
    array: NDArray[Any] = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
    return array.copy()  # may be written to, unlike the payload


def _pixels(payload: bytes) -> NDArray[Any]:
    try:
        opened = pillow.open_image(payload, MAX_PIXELS)
        pillow.check_end(opened)
        opened.image.load()
        return np.array(opened.image)
    except Exception as error:  # Pillow's plugins raise anything on damaged files
        raise pillow.decode_error(error) from None


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "json": _json,
    "cls": _class,
    "txt": _text,
    "text": _text,
    "npy": _array,
    **dict.fromkeys(_IMAGES, _pixels),
}
