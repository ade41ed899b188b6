"""TFRecord files: the published checksums, cut at every place, wrong lengths; sets after any kill, and refusals."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from lmdb_containers import sample
from tar_sets import build, contents
from tfrecord_messages import framed

from iofast.containers import shard_writer, tfrecord
from iofast.containers.file_bytes import FileBytes
from iofast.containers.manifest import Description
from iofast.containers.tfrecord import (
    FOOT,
    HEAD,
    TfrecordReader,
    TfrecordWriter,
    frames,
    head,
    mask,
    read_data,
    read_frame,
    unmask,
)
from iofast.containers.writer import Section
from iofast.errors import ContainerError, OptionError, UnfinishedError
from iofast.record import ImageInfo


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


def test_resume_after_a_kill_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill interrupts a write, and a part of its bytes is in the file. Afterwards the bytes are the same."""
    written = [sample(i, 200 + i, "train" if i < 12 else "val") for i in range(20)]
    (tmp_path / "whole").mkdir()
    build(tmp_path / "whole" / "out.tfrecord", written, records=3)
    wanted = contents(tmp_path / "whole")
    assert len(wanted) > 6
    plain = shard_writer.write
    for kill in (*range(10), *range(10, 26, 3)):
        folder = tmp_path / str(kill)
        folder.mkdir()
        for count in (kill, kill % 3):  # writes until each kill: of the first run, then of its successor
            _kill_after(count, monkeypatch)
            with pytest.raises(KeyboardInterrupt):
                build(folder / "out.tfrecord", written, records=3)
            monkeypatch.setattr(shard_writer, "write", plain)
        with pytest.raises((UnfinishedError, FileNotFoundError)):
            TfrecordReader(folder / "out.tfrecord")
        build(folder / "out.tfrecord", written, records=3)
        assert contents(folder) == wanted


def _kill_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = shard_writer.write
    left = [count]

    def write(fd: int, pieces: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            data = b"".join(pieces)
            plain(fd, [data[: len(data) * (count % 4) // 4]])
            raise KeyboardInterrupt
        plain(fd, pieces)

    monkeypatch.setattr(shard_writer, "write", write)


@pytest.mark.parametrize("other", [Description(recipe={"label_base": 1}), Description(classes=tuple("tuvwxyz"))])
def test_what_was_written_with_other_options_is_not_kept(tmp_path: Path, other: Description) -> None:
    writer, section = TfrecordWriter(tmp_path, "out.tfrecord", other, 8), Section(0, "all", 0, 10)
    writer.begin(section)
    writer.write(*sample(0)[:3])
    writer.commit()
    assert TfrecordWriter(tmp_path, "out.tfrecord", Description(), 8).resume([section]) == [section]


# Refusals and damage.


def test_what_a_writer_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="label_base must be 0 or 1, found 2"):
        TfrecordWriter(tmp_path, "out.tfrecord", Description(recipe={"label_base": 2}), 8)
    writer = TfrecordWriter(tmp_path, "out.tfrecord", Description(classes=("a",)), 8)
    writer.begin(Section(0, "all", 0, 10))
    writer.write(0, {"cls": b"0"}, ImageInfo(0))
    monkeypatch.setattr("iofast.containers.tfrecord.MAX_DATA", 100_000)
    with pytest.raises(ContainerError, match="a TFRecord of 100143 bytes is longer than protobuf allows, 100000"):
        writer.write(1, {"jpg": bytes(100_000)}, ImageInfo())
    writer.write(1, {"jpg": b"z"}, ImageInfo())  # nothing of the illegal record is left
    assert writer.finish().count == 2
