"""TFRecord framing: the published checksums, files cut at every place, and wrong lengths."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tfrecord_messages import framed

from iofast.containers import tfrecord
from iofast.containers.file_bytes import FileBytes
from iofast.containers.tfrecord import FOOT, HEAD, frames, head, mask, read_data, read_frame, unmask
from iofast.errors import ContainerError


def read_all(path: Path) -> list[bytes]:
    data = FileBytes(str(path))
    return [read_data(data, frame) for frame in frames(data)]


def test_what_tensorflow_writes(tmp_path: Path) -> None:
    """The record that TensorFlow's own writer makes of b"123"; the bytes are those of its TFRecordWriter."""
    assert mask(google_crc32c.value(b"123456789")) == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF
    path = tmp_path / "a"
    path.write_bytes(framed(b"123"))
    length, length_crc, data, data_crc = struct.unpack("<QI3sI", path.read_bytes())
    assert (length, data) == (3, b"123")
    assert unmask(length_crc) == google_crc32c.value(struct.pack("<Q", 3))
    assert unmask(data_crc) == google_crc32c.value(b"123")


@given(st.integers(0, (1 << 32) - 1))
def test_mask_and_back(crc: int) -> None:
    assert unmask(mask(crc)) == crc
    assert 0 <= mask(crc) < 1 << 32


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=6))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, records: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("framing") / "a"
    path.write_bytes(framed(*records))
    assert read_all(path) == records


def test_cut_at_every_place(tmp_path: Path) -> None:
    whole = framed(b"abc", b"", b"defgh")
    ends = {HEAD + 3 + FOOT: 1, HEAD + 3 + FOOT + HEAD + FOOT: 2, len(whole): 3}
    for size in range(1, len(whole) + 1):
        path = tmp_path / str(size)
        path.write_bytes(whole[:size])
        if size in ends:
            assert read_all(path) == [b"abc", b"", b"defgh"][: ends[size]]
        else:
            begun = max([0, *[end for end in ends if end < size]])
            with pytest.raises(ContainerError, match=rf"{path} ends within .* at offset {begun}:"):
                read_all(path)


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    whole = framed(b"abc", b"defgh")
    for bit in range(8 * len(whole)):
        broken = bytearray(whole)
        broken[bit // 8] ^= 1 << bit % 8
        path = tmp_path / "a"
        path.write_bytes(broken)
        with pytest.raises(ContainerError, match=r"is damaged (at|in the record at) offset (0|19)"):
            read_all(path)


@pytest.mark.parametrize("length", [6, 1 << 31, (1 << 63) + 5, (1 << 64) - 1, (1 << 64) - 16])
def test_wrong_lengths_with_a_right_checksum(tmp_path: Path, length: int) -> None:
    packed = struct.pack("<Q", length)
    path = tmp_path / "a"
    path.write_bytes(packed + struct.pack("<I", mask(google_crc32c.value(packed))) + b"hello" + bytes(4))
    with pytest.raises(ContainerError, match="at offset 0"):
        read_frame(FileBytes(str(path)), 0)


@pytest.mark.parametrize(("name", "compress"), [("GZIP", gzip.compress), ("ZLIB", zlib.compress)])
def test_compressed_files_are_refused_by_name(tmp_path: Path, name: str, compress: object) -> None:
    assert callable(compress)
    path = tmp_path / "a"
    path.write_bytes(compress(framed(b"abc" * 50)))
    with pytest.raises(ContainerError, match=f"{path} is compressed as a whole with {name}"):
        read_all(path)


def test_longest_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "MAX_DATA", 10)
    assert len(head(10)) == HEAD
    with pytest.raises(ContainerError, match="11 bytes is longer than protobuf allows"):
        head(11)
