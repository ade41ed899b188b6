"""`tf.train.Example` by protobuf itself, the oracle for our own codec, and files of such records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from iofast.containers.tfrecord import foot, head

Features = dict[str, Any]


def _example_class() -> Any:
    """The message class, from a description of tensorflow/core/example/{example,feature}.proto."""
    file = descriptor_pb2.FileDescriptorProto(name="iofast_test_example.proto", package="iofast_test", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    repeated, optional = kinds.LABEL_REPEATED, kinds.LABEL_OPTIONAL
    lists = (("BytesList", kinds.TYPE_BYTES), ("FloatList", kinds.TYPE_FLOAT), ("Int64List", kinds.TYPE_INT64))
    for name, kind in lists:
        file.message_type.add(name=name).field.add(name="value", number=1, type=kind, label=repeated)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (field, (name, _)) in enumerate(zip(("bytes_list", "float_list", "int64_list"), lists, strict=True), 1):
        feature.field.add(
            name=field, number=number, type=kinds.TYPE_MESSAGE, type_name=f".iofast_test.{name}", label=optional
        ).oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=optional)
    own = {"type": kinds.TYPE_MESSAGE, "label": optional}
    entry.field.add(name="value", number=2, type_name=".iofast_test.Feature", **own)
    name = ".iofast_test.Features.FeatureEntry"
    features.field.add(name="feature", number=1, type=kinds.TYPE_MESSAGE, type_name=name, label=repeated)
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, type_name=".iofast_test.Features", **own)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("iofast_test.Example"))


Example = _example_class()


def values(example: Any) -> dict[str, tuple[str, list[Any]]]:
    """Name → (kind of list, its values) of a message."""
    found = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind") or ""
        own = list(getattr(feature, kind).value) if kind else []
        found[name] = (kind, own)
    return found


def example(features: Features) -> bytes:
    """The bytes of a message."""
    message = Example()
    for name, value in features.items():
        feature = message.features.feature[name]
        values = value if isinstance(value, list) else [value]
        if isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
    data: bytes = message.SerializeToString()
    return data


def framed(*records: bytes) -> bytes:
    """A file of these records; the checksums of data are by google_crc32c."""
    return b"".join(head(len(data)) + data + foot(google_crc32c.value(data)) for data in records)


def write(path: Path, records: Sequence[Features | bytes]) -> Path:
    """Write a file like another program."""
    path.write_bytes(framed(*(record if isinstance(record, bytes) else example(record) for record in records)))
    return path
