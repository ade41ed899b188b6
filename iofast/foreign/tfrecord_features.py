"""Interpret a record of a foreign TFRecord file: which features are image, label, class name and path.

The usual names are those of the ImageNet converters, TensorFlow Datasets, img2dataset and WebDataset.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from iofast.containers.tfrecord_example import ByteSpan, Feature, FeatureKind, integers, parse
from iofast.errors import ContainerError
from iofast.foreign.options import ROLES, ForeignOptions

IMAGES = ("image/encoded", "image", "jpg", "jpeg", "png", "webp", "image_raw", "image/raw", "encoded_image")
LABELS = ("image/class/label", "label", "cls", "class", "target")
TEXTS = ("image/class/text", "image/class/name", "class_name")
PATHS = ("image/filename", "file_name", "filename", "path")
KEYS = ("key", "__key__", "iofast/key")

_IMPLIED = ("height", "width", "channels", "colorspace", "format")
_IMPLIED_NAMES = frozenset((*_IMPLIED, *(f"image/{name}" for name in _IMPLIED)))

MAX_TEXT = 4096  # bytes of a class name, path or key; longer ones are ignored


@dataclass(frozen=True, slots=True)
class FeatureNames:
    """The names of features that differ from the usual ones.

    `image` (encoded, bytes), `label` (int64) and `path` (bytes) are names of features; None = the first of the usual
    names that a record has. `label_base` is the number of the first class. `fields` adds bytes features as fields of
    the records: pairs of field and feature, such as `("seg.png", "image/segmentation/class/encoded")`.
    """

    image: str | None = None
    label: str | None = None
    path: str | None = None
    label_base: int = 0
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def known(self) -> frozenset[str]:
        """Features that are read, or that only describe the image."""
        named = ((self.image, IMAGES), (self.label, LABELS), (self.path, PATHS))
        read = [name for own, usual in named for name in (usual if own is None else (own,))]
        return _IMPLIED_NAMES.union(read, TEXTS, KEYS, (own for _, own in self.fields))

    @classmethod
    def of(cls, options: ForeignOptions) -> Self:
        """From the user's options. Raises `OptionError` for options that do not apply to TFRecord."""
        names = dict(options.names)
        image, label, path = (names.pop(role, None) for role in ROLES)
        return cls(image, label, path, options.label_base, tuple(sorted(names.items())))


class Understood(NamedTuple):
    """One record: the places of payloads in its data, and other values. None: the record has no such value."""

    image: ByteSpan | None
    label: int  # from 0, −1 = none
    text: str | None  # the class's name, or the label's text without a number
    json: bytes | None  # the field `json`: path and key
    fields: list[ByteSpan | None]  # in the order of the options
    features: frozenset[str]  # the names of all


def understand(data: bytes, options: FeatureNames) -> Understood:
    """Interpret one serialised Example. Raises `ContainerError` for other bytes or a label out of range."""
    features = parse(data)
    texts = {
        "key": _text(data, features, KEYS),
        "path": _text(data, features, PATHS if options.path is None else (options.path,)),
    }
    known = {name: text for name, text in texts.items() if text is not None}
    label = _label(data, features, options)
    return Understood(
        image=_place(features, IMAGES if options.image is None else (options.image,)),
        label=label,
        text=_text(data, features, TEXTS) or (_label_text(data, features, options) if label < 0 else None),
        json=json.dumps(known, ensure_ascii=False, separators=(",", ":")).encode() if known else None,
        fields=[_place(features, (feature,), empty=True) for _, feature in options.fields],
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


def _label_text(data: bytes, features: dict[str, Feature], options: FeatureNames) -> str | None:
    """The text of a label that is a single text and no field."""
    taken = {feature for _, feature in options.fields}
    names = [name for name in (LABELS if options.label is None else (options.label,)) if name not in taken]
    single = {name: features[name] for name in names if name in features and len(features[name].spans) == 1}
    return _text(data, single, names)


def _label(data: bytes, features: dict[str, Feature], options: FeatureNames) -> int:
    """The class index, or -1 for none or several. Decimal text counts as a number, as in WebDataset's `cls`."""
    for name in LABELS if options.label is None else (options.label,):
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
