"""The Example codec against protobuf: what we write it reads, what it writes we read, what is no message is refused."""

import random
import struct
from typing import Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tfrecord_messages import Example, values

from iofast.containers import tfrecord_example
from iofast.containers.tfrecord_example import FeatureKind, encode, integers, parse
from iofast.errors import ContainerError

NAMES = {
    FeatureKind.NONE: "",
    FeatureKind.BYTES: "bytes_list",
    FeatureKind.FLOATS: "float_list",
    FeatureKind.INTEGERS: "int64_list",
}

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(["image/encoded", "label"])
int64 = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 300)
features = st.dictionaries(
    names,
    st.one_of(
        st.tuples(st.just("bytes_list"), st.lists(st.binary(max_size=300), max_size=4)),
        st.tuples(st.just("float_list"), st.lists(st.floats(width=32, allow_nan=False), max_size=5)),
        st.tuples(st.just("int64_list"), st.lists(int64, max_size=5)),
        st.tuples(st.just(""), st.just([])),
    ),
    max_size=6,
)


def message(content: dict[str, tuple[str, list[Any]]]) -> Any:
    example = Example()
    for name, (kind, own) in content.items():
        feature = example.features.feature[name]
        if kind:
            getattr(feature, kind).SetInParent()
            getattr(feature, kind).value.extend(own)
    return example


def ours(data: bytes) -> dict[str, tuple[str, list[Any]]]:
    """What our parser finds, as `values` has it."""
    found: dict[str, tuple[str, list[Any]]] = {}
    for name, feature in parse(data).items():
        own: list[Any] = []
        if feature.kind == FeatureKind.BYTES:
            own = [data[span.start : span.stop] for span in feature.spans]
        elif feature.kind == FeatureKind.FLOATS:
            own = [
                number for at, stop in feature.spans for number in struct.unpack(f"<{(stop - at) // 4}f", data[at:stop])
            ]
        elif feature.kind == FeatureKind.INTEGERS:
            own = integers(data, feature)
        found[name] = (NAMES[feature.kind], own)
    return found


def number(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(tag: int, content: bytes) -> bytes:
    """A field with a length: `tag` is its number."""
    return number(tag << 3 | 2) + number(len(content)) + content


def example(*entries: bytes) -> bytes:
    return field(1, b"".join(field(1, entry) for entry in entries))


def entry(name: str, feature: bytes) -> bytes:
    return field(1, name.encode()) + field(2, feature)


@given(st.dictionaries(names, st.binary(max_size=300) | st.integers(2040, 2060).map(bytes) | int64, max_size=8))
def test_protobuf_reads_what_we_write(content: dict[str, bytes | int]) -> None:
    pieces, crc, places = encode(content)
    data = b"".join(pieces)
    assert google_crc32c.value(data) == crc
    read = Example.FromString(data)
    kinds = {name: "bytes_list" if isinstance(value, bytes) else "int64_list" for name, value in content.items()}
    assert values(read) == {name: (kinds[name], [value]) for name, value in content.items()} == ours(data)
    for name, value in content.items():
        if isinstance(value, bytes):
            assert data[places[name] : places[name] + len(value)] == value
    # sorted by name, and nothing that protobuf would leave out
    assert len(read.SerializeToString()) == len(data)
    assert list(parse(data)) == sorted(content, key=str.encode)


@given(features, st.randoms(use_true_random=False))
def test_we_read_what_protobuf_writes(content: dict[str, tuple[str, list[Any]]], rng: random.Random) -> None:
    order = list(content)
    rng.shuffle(order)
    data = message({name: content[name] for name in order}).SerializeToString()
    assert ours(data) == values(Example.FromString(data)) == content


@pytest.mark.parametrize(
    "feature",
    [
        field(3, number(8) + number(5) + number(8) + number(1 << 63)),  # unpacked
        field(3, field(1, b"\1\2") + b"\x08\3" + field(1, b"\4") + b"\x08\5\x08\6"),  # both, mixed
        field(3, b"\x08\1" + b"\x88\0\2" + b"\x08\3"),  # a tag of two bytes
        field(2, b"\x0d\0\0\x80\x3f\x0d\0\0\0\x40" + field(1, b"\0\0\0\0")),
        field(3, b"\x08\1") + field(3, b"\x08\2"),  # merged
        field(3, b"\x08\1") + field(1, field(1, b"x")),  # the later list counts
        field(3, b"\x08\1") + field(1, field(1, b"x")) + field(3, b"\x08\2"),
        field(9, b"unknown") + field(3, field(7, b"") + b"\x08\1\x10\1\x11abcdefgh\x15abcd"),
        b"\x08\1",  # a list as a number: unknown
        b"",
        field(2, field(1, b"\0\0\xc0\x7f")),  # NaN
    ],
)
def test_shapes_that_others_write(feature: bytes) -> None:
    """Both find the same; texts are compared, because NaN is not NaN."""
    for data in (
        example(entry("a", feature), entry("b", feature), entry("a", feature) + field(2, feature)),
        example(entry("a", feature)) + field(5, b"?") + example(entry("c", b"")),
        example(field(2, feature) + field(1, b"late")),
    ):
        found, theirs = ours(data), values(Example.FromString(data))
        assert repr(sorted(found.items())) == repr(sorted(theirs.items()))
    parse(example(field(2, feature)))  # no name


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x0a\x05", "ends at 7, its message at 2"),
        (b"\x0a\xff\xff\xff\xff\x0f", "its message at 6"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "more than 32 bits"),
        (b"\x08" + b"\xff" * 11, "more than 64 bits"),
        (b"\x08" + b"\xff" * 9 + b"\x02", "more than 64 bits"),
        (b"\x0b\x0c", "wire type 3, which proto3"),
        (b"\x0e\0", "wire type 6"),
        (b"\x02\0", "field number 0"),
        (example(field(1, b"\xff")), "not UTF-8"),
    ],
)
def test_what_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ContainerError, match=message):
        parse(data)


def test_too_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord_example, "MAX_PARTS", 100)
    for feature in (field(1, field(1, b"") * 101), field(3, b"\x08\1" * 101)):
        with pytest.raises(ContainerError, match="more than 100 features and values"):
            parse(example(entry("a", feature)))
    with pytest.raises(ContainerError, match="more than 100 features and values"):
        parse(example(*(entry(f"{number}", field(1, field(1, b"x"))) for number in range(51))))


def test_integers_have_64_bits() -> None:
    with pytest.raises(ContainerError, match="does not fit an int64"):
        encode({"a": 1 << 63})
    data = example(entry("a", field(3, field(1, b"\x80"))))
    with pytest.raises(ContainerError, match="ends nowhere"):
        integers(data, parse(data)["a"])
