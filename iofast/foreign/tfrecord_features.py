"""Interpret a record of a foreign TFRecord file: which features are image, label, class name and path.

The usual names are those of the ImageNet converters, TensorFlow Datasets, img2dataset and WebDataset.
"""

import json
from collections.abc import Iterable
from typing import NamedTuple

from iofast.containers.tfrecord_example import ByteSpan, Feature, FeatureKind, integers, parse
from iofast.errors import ContainerError
from iofast.foreign.options import ForeignOptions
from iofast.source.image_files import IMAGE_FIELD

USUAL = {
    "image": ("image/encoded", "image", "jpg", "jpeg", "png", "webp", "image_raw", "image/raw", "encoded_image"),
    "label": ("image/class/label", "label", "cls", "class", "target"),
    "path": ("image/filename", "file_name", "filename", "path"),
}
TEXTS = ("image/class/text", "image/class/name", "class_name")
KEYS = ("key", "__key__", "iofast/key")

_IMPLIED = ("height", "width", "channels", "colorspace", "format")
_IMPLIED_NAMES = frozenset((*_IMPLIED, *(f"image/{name}" for name in _IMPLIED)))

MAX_TEXT = 4096  # bytes of a class name, path or key; longer ones are ignored


def features_of(options: ForeignOptions, role: str) -> tuple[str, ...]:
    """The names of features that may be the image, label or path of a record: the user's choice, or the usual ones."""
    return (options.names[role],) if role in options.names else USUAL[role]


def known(options: ForeignOptions) -> frozenset[str]:
    """Features that are read, or that only describe the image."""
    read = (name for role in USUAL for name in features_of(options, role))
    return _IMPLIED_NAMES.union(read, TEXTS, KEYS, options.fields.values())


class Understood(NamedTuple):
    """One record: the places of payloads in its data, and other values. None: the record has no such value."""

    places: dict[str, ByteSpan]  # by field: the image, and those in the options
    label: int = -1  # from 0, −1 = none
    text: str | None = None  # the class's name, or the label's text without a number
    json: bytes = b""  # the field `json`: path and key
    features: frozenset[str] = frozenset()  # the names of all


def understand(data: bytes, options: ForeignOptions) -> Understood:
    """Interpret one serialised Example. Raises `ContainerError` for other bytes or a label out of range."""
    features = parse(data)
    texts = {"key": _text(data, features, KEYS), "path": _text(data, features, features_of(options, "path"))}
    told = {name: text for name, text in texts.items() if text is not None}
    label = _label(data, features, options)
    places = {IMAGE_FIELD: _place(features, features_of(options, "image"))}
    places |= {field: _place(features, (feature,), empty=True) for field, feature in options.fields.items()}
    return Understood(
        places={field: span for field, span in places.items() if span is not None},
        label=label,
        text=_text(data, features, TEXTS) or (_label_text(data, features, options) if label < 0 else None),
        json=json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode() if told else b"",
        features=frozenset(features),
    )


def _place(features: dict[str, Feature], names: Iterable[str], *, empty: bool = False) -> ByteSpan | None:
    """The first value of the first of these features that is a non-empty bytes list."""
    for name in names:
        feature = features.get(name)
        if feature is not None and feature.kind == FeatureKind.BYTES and feature.spans:
            span = feature.spans[0]
            if empty or span.stop > span.start:
                return span
    return None


def _text(data: bytes, features: dict[str, Feature], names: Iterable[str]) -> str | None:
    span = _place(features, names)
    if span is None or span.stop - span.start > MAX_TEXT:
        return None
    try:
        return data[span.start : span.stop].decode()
    except UnicodeDecodeError:
        return None


def _label_text(data: bytes, features: dict[str, Feature], options: ForeignOptions) -> str | None:
    """The text of a label that is a single text and no field."""
    names = [name for name in features_of(options, "label") if name not in options.fields.values()]
    single = {name: features[name] for name in names if name in features and len(features[name].spans) == 1}
    return _text(data, single, names)


def _label(data: bytes, features: dict[str, Feature], options: ForeignOptions) -> int:
    """The class index, or -1 for none or several. Decimal text counts as a number, as in WebDataset's `cls`."""
    for name in features_of(options, "label"):
        feature = features.get(name)
        if feature is None or len(feature.spans) != 1:
            continue
        if feature.kind == FeatureKind.INTEGERS:
            numbers = integers(data, feature) if feature.spans[0].stop - feature.spans[0].start <= 11 else []
        elif feature.kind == FeatureKind.BYTES:
            text = data[feature.spans[0].start : feature.spans[0].stop]
            numbers = [int(text)] if text.isdigit() and len(text) <= 10 else []
        else:
            numbers = []
        if len(numbers) == 1:
            return _checked(name, numbers[0], options.label_base)
    return -1


def _checked(name: str, number: int, base: int) -> int:
    if number == -1:  # a common way to say "no label"
        return -1
    if not base <= number < 1 << 31:
        raise ContainerError(f"its label {name} is {number}, expected {base} (the label base) or more, below 2³¹")
    return number - base
