"""`tf.train.Example` by protobuf itself, the oracle for our own codec, and files of such records."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from iofast.containers.tfrecord import foot, head

Features = dict[str, Any]


# tensorflow/core/example/{example,feature}.proto
_FILE = """
name: "iofast_test_example.proto" package: "iofast_test" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList" field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List" field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: "BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: "FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: "Int64List" oneof_index: 0 } }
message_type { name: "Features"
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING } field { name: "value" number: 2 type_name: "Feature" } }
  field { name: "feature" number: 1 type_name: "FeatureEntry" label: LABEL_REPEATED } }
message_type { name: "Example" field { name: "features" number: 1 type_name: "Features" } }
"""
_pool = descriptor_pool.DescriptorPool()
_pool.Add(text_format.Parse(_FILE, descriptor_pb2.FileDescriptorProto()))
Example = message_factory.GetMessageClass(_pool.FindMessageTypeByName("iofast_test.Example"))


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
