"""Fields of a record besides its image: from payload to value, and from the values of a batch to a tensor.

The last part of a field's name is its type, as in WebDataset: `boxes.json`, `seg.png`, `coarse.cls`. Payloads are not
trusted: nothing is unpickled, and sizes are checked before memory is allocated.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.containers.base import Reader
from iofast.containers.manifest import Manifest
from iofast.errors import DecodeError, OptionError, shown
from iofast.kernel import lossless, memory, pillow
from iofast.kernel.lossless import PNG
from iofast.record import ARRAY_FIELD, IMAGE_FIELDS, RAW_FIELDS, holds_places, image_field
from iofast.source.listing import few

OF_IMAGE = ("image", "crop")  # fields that every sample with an image has besides those of its record
PSEUDO_FIELDS = (*OF_IMAGE, "label", "key", "index")  # the others are those of every sample
MAX_TEXT = 64 << 20  # bytes of JSON or text, the limit of a manifest; JSON takes ten times as much as objects

_OPAQUE = {*IMAGE_FIELDS, *RAW_FIELDS} - {ARRAY_FIELD, PNG}  # images of 8 bits, whose pixels are the field "image"
_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "avif")
_WIDER = {"u2": np.int32, "u4": np.int64}  # unsigned types that torch hardly supports
_TENSORS = ("b1", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16")


def check_fields(fields: Sequence[str] | None, reader: Reader, where: str) -> tuple[str, ...] | None:
    """Check the option `fields`; None = image and label. Raises `OptionError` for a field that does not exist."""
    manifest = reader.manifest
    has_image = image_field(manifest.fields) is not None or not manifest.count
    known = (*PSEUDO_FIELDS[0 if has_image else len(OF_IMAGE) :], *manifest.fields)
    if fields is None:
        if not has_image:
            words = f"{where} has no images: give fields=, any of {few(known, 10)}"
            raise OptionError("; ".join((words, *reader.left_out)))
        return None
    listed = isinstance(fields, Iterable) and not isinstance(fields, str) and getattr(fields, "shape", True) != ()
    names = tuple(fields) if listed else ()
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise OptionError(f"fields must be a list of names, each once, found {shown(fields)}")
    for name in names:
        if name not in known:
            raise OptionError(f"{where} has no field {name!r}, only {few(known, 10)}")
    return names


def annotation_fields(names: Iterable[str], manifest: Manifest) -> set[str]:
    """Those of `names` that hold masks, boxes or keypoints, by the recipe or by their names.

    Their places are in pixels of the image as it is stored, upright.
    """
    declared = [manifest.recipe.get(option) for option in ("boxes", "keypoints")]
    return {name for name in names if name.endswith(".png") or holds_places(name) or name in declared}


def decode_field(name: str, payload: bytes) -> Any:
    """Decode a payload by the last part of its field's name.

    `json` → its value; `cls` → int; `txt`, `text` → str; `npy` → NumPy array; an image's suffix (`seg.png`) → its
    pixels as stored, uint8 (or uint16, bool) of shape (height, width) or (height, width, channels), palettes as
    numbers, EXIF ignored. The record's own `png` has all its bits: uint8 or uint16 (height, width, channels), upright.
    Other names → bytes: unknown ones, pickled data, and the record's own image of 8 bits (`jpg`, `webp`, `rgb`), whose
    pixels are the field "image". Raises `DecodeError` naming the field.
    """
    suffix = name.rpartition(".")[2]
    decode = None if name in _OPAQUE else lossless.upright if name == PNG else _DECODERS.get(suffix)
    if decode is None:
        return payload
    try:
        return decode(payload)
    except Exception as error:  # parsers of JSON and .npy raise many types
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DecodeError(f"field {name}: {reason:.200}") from None


def collate(values: Sequence[Any]) -> Any:
    """Collate the values of one field: a tensor with one dimension more, or a list.

    int becomes int64, float float32, bool bool; lists of numbers (soft labels, boxes) likewise if all have one shape.
    Arrays and tensors of one shape and type are stacked. Everything else stays a list: text, bytes, mappings, None, and
    values of different shapes.
    """
    kinds = set(map(type, values))
    if kinds and kinds <= {torch.Tensor}:
        alike = len({(each.shape, each.dtype) for each in values}) == 1
        return torch.stack(list(values)) if alike else list(values)
    if kinds and kinds <= {bool, int, float}:
        row = _numbers(list(values))
        return list(values) if row is None else torch.from_numpy(row)
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
    """A number, or a list of numbers of any depth, as an array of bool, int64 or float32; None for anything else."""
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
    try:
        return json.loads(_text(payload))
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None


def _text(payload: bytes) -> str:
    if len(payload) > MAX_TEXT:
        raise DecodeError(f"text must have at most {MAX_TEXT} bytes, found {len(payload)}")
    return payload.decode("utf-8")


def _class(payload: bytes) -> int:
    if not payload.isdigit() or len(payload) > 10:
        raise DecodeError(f"a class index must be a decimal number, found {payload!r:.40}")
    return int(payload)


def _array(payload: bytes) -> NDArray[Any]:
    """Read a .npy file. NumPy's own reader allocates memory for any shape that the header claims."""
    stream = BytesIO(payload)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise DecodeError(f"the version of .npy must be 1.0 or 2.0, found {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise DecodeError("pickled objects are never loaded")
    size, found = math.prod(shape) * dtype.itemsize, len(payload) - stream.tell()
    if size != found or min(shape, default=0) < 0:
        raise DecodeError(f"an array of shape {shape} and type {dtype} must have {size} bytes, found {found}")
    flat = np.frombuffer(payload, dtype, offset=stream.tell()) if size else np.empty(math.prod(shape), dtype)
    array: NDArray[Any] = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
    return array.copy()  # writable, unlike the payload


def _pixels(payload: bytes) -> NDArray[Any]:
    with pillow.as_decode_errors():
        return pillow.array(memory.loaded(payload).image)


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "json": _json,
    "cls": _class,
    "txt": _text,
    "text": _text,
    "npy": _array,
    **dict.fromkeys(_IMAGES, _pixels),
}
