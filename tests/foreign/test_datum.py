"""Caffe's Datum, compared with protobuf."""

from __future__ import annotations

from typing import Any

import pytest
from foreign_lmdbs import datum, varint
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from iofast.errors import ContainerError
from iofast.foreign.datum import Datum, NoDatumError, parse_datum


def _message() -> Any:
    """caffe.Datum, from a description of its .proto."""
    file = descriptor_pb2.FileDescriptorProto(name="iofast_test_datum.proto", package="iofast_test", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    message = file.message_type.add(name="Datum")
    fields = {"channels": 5, "height": 5, "width": 5, "data": 12, "label": 5, "float_data": 2, "encoded": 8}
    for number, (name, kind) in enumerate(fields.items(), 1):
        label = kinds.LABEL_REPEATED if name == "float_data" else kinds.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=kind, label=label)  # type: ignore[arg-type]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("iofast_test.Datum"))


CaffeDatum = _message()


def parse(data: bytes) -> Datum:
    asked: list[int] = []

    def read(start: int, count: int) -> bytes:
        asked.append(count)
        return data[start : start + count]

    found = parse_datum(read, len(data))
    assert sum(asked) <= 64 * 32  # whatever the data's size
    return found


sizes = st.integers(0, 1 << 20)


@given(sizes, sizes, sizes, st.binary(), st.integers(-(1 << 31), (1 << 31) - 1), st.booleans())
def test_as_protobuf(channels: int, height: int, width: int, data: bytes, label: int, encoded: bool) -> None:
    message = CaffeDatum(channels=channels, height=height, width=width, data=data, label=label, encoded=encoded)
    serialised = message.SerializeToString()
    found = parse(serialised)
    assert (found.channels, found.height, found.width, found.label) == (channels, height, width, label)
    assert (serialised[found.start : found.stop], found.encoded) == (data, encoded)
    assert found.is_raw == (not encoded and 0 < len(data) == channels * height * width)
    assert serialised == datum(data, (channels, height, width), label, encoded) or 0 in (
        channels,
        height,
        width,
        encoded,
    )


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    """What we take, protobuf takes, and finds the same in it."""
    try:
        found = parse(data)
    except ContainerError:
        return
    message = CaffeDatum.FromString(data)
    assert (found.channels, found.height, found.width) == (message.channels, message.height, message.width)
    assert data[found.start : found.stop] == message.data
    assert found.label == (message.label if message.HasField("label") else -1)
    assert found.encoded == message.encoded


@given(st.data())
def test_flips_and_cuts(data: Any) -> None:
    whole = bytearray(datum(b"pixels" * 4, (3, 2, 4), 300, True))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        found = parse(cut)
    except ContainerError:
        return
    assert 0 <= found.start <= found.stop <= len(cut)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x35\0\0\0\0", "a Datum of floats"),
        (b"\x0a\x01a", "field 1 of wire type 2 at 0 is not one of a Caffe Datum"),
        (b"\x40\x01", "field 8 of wire type 0"),
        (b"\x22\x7fabc", "data of 127 bytes at 2 goes beyond the 5 bytes"),
        (b"\x08" + varint(-1), "field 1 of the Datum is -1"),
        (b"\x08" + b"\xff" * 11, "the number at 1 of the Datum is cut off"),
        (b"\x38\x01" * 65, "more than 64 parts"),
    ],
)
def test_other_bytes_are_an_error(data: bytes, message: str) -> None:
    with pytest.raises(NoDatumError, match=message):
        parse(data)


def test_the_last_of_several_counts() -> None:
    found = parse(datum(b"a", label=1) + datum(b"bc", label=2))
    assert (found.label, found.stop - found.start) == (2, 2)
    assert parse(b"") == Datum(0, 0, 0, 0, 0, -1, False)
