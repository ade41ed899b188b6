"""The TFRecord container: framing, names and features as other programs know them, kills, refusals and damage."""

import gzip
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from lmdb_containers import Fields, expected, sample, samples
from tar_sets import CLASSES, build, contents, shards
from tfrecord_messages import Example, framed, values

from iofast.containers.file_bytes import FileBytes
from iofast.containers.manifest import Description
from iofast.containers.shards import expand
from iofast.containers.tfrecord import (
    FOOT,
    HEAD,
    TfrecordReader,
    TfrecordWriter,
    frames,
    mask,
    read_data,
    read_frame,
    unmask,
)
from iofast.containers.writer import Section
from iofast.errors import ContainerError, OptionError
from iofast.foreign.options import ForeignOptions
from iofast.foreign.reader import ForeignReader
from iofast.foreign.tfrecord import TfrecordFiles
from iofast.record import ImageInfo


def messages(path: Path) -> list[dict[str, Any]]:
    """Every Example of a shard as protobuf reads it: a value, or a list where there are several."""
    data = FileBytes(str(path))
    read = (values(Example.FromString(read_data(data, frame))) for frame in frames(data))
    return [{name: own[0] if len(own) == 1 else own for name, (_, own) in each.items()} for each in read]


def test_names(tfrecord_set: Path) -> None:
    manifest = TfrecordReader(tfrecord_set).manifest
    names = {split: [s.name for s in manifest.shards if f"out-{split}-" in s.name] for split in ("train", "val")}
    for split, own in names.items():
        assert own == [f"out-{split}-{i:05d}-of-{len(own):05d}.tfrecord" for i in range(len(own))]
        assert len(own) >= 4
    described = ["out.tfrecord.index", "out.tfrecord.manifest"]
    assert sorted(contents(tfrecord_set.parent)) == sorted([*names["train"], *names["val"], *described])
    for shard in manifest.shards:
        assert shard.size == (tfrecord_set.parent / shard.name).stat().st_size
        assert len(messages(tfrecord_set.parent / shard.name)) == shard.count


def test_what_others_find(tfrecord_set: Path) -> None:
    found = [message for path in shards(tfrecord_set) for message in messages(path)]
    for message, (position, fields, info, _) in zip(found, samples(), strict=True):
        assert message == {
            "image/encoded": fields["jpg"],
            "image/format": b"JPEG",
            "image/channels": 3,
            "image/colorspace": b"RGB",
            "image/width": info.width,
            "image/height": info.height,
            "image/filename": b"%d.jpg" % position,
            "image/class/label": info.label,
            "image/class/text": b"abcdefg"[info.label : info.label + 1],
            "iofast/key": b"%08d" % position,
            "iofast/cls": fields["cls"],
            "iofast/json": fields["json"],
        }


def test_without_splits_classes_or_images(tmp_path: Path) -> None:
    fields: Fields = {"cls": b"0", "txt": b"", "key": b"mine", "png": b"second"}
    info = ImageInfo(0, 2, 2)
    written = [
        (0, fields, info, "all"),
        (1, {"rgb": bytes(12), "json": b'{"path":["no text"]}'}, ImageInfo(-1, 2, 2), "all"),
        (2, {"json": b'{"path":"a/b.jpg"', "txt": "ü".encode()}, ImageInfo(), "all"),
    ]
    build(tmp_path / "a.tfrecords", written, Description(recipe={"label_base": 1}))
    path = tmp_path / "a-00000-of-00001.tfrecords"
    first, second, third = messages(path)
    assert (first["image/encoded"], first["image/format"], first["image/class/label"]) == (b"second", b"PNG", 1)
    assert (first["iofast/field/key"], first["iofast/key"], first["iofast/txt"]) == (b"mine", b"00000000", b"")
    assert set(second) == {"iofast/key", "iofast/rgb", "iofast/json", "image/width", "image/height"}
    assert set(third) == {"iofast/key", "iofast/txt", "iofast/json"}
    with TfrecordReader(tmp_path / "a.tfrecords") as reader:
        assert list(reader) == expected(written)
        assert reader.locate(np.arange(2)).label.tolist() == [0, -1]  # the base is for others


def test_read_without_the_manifest_as_a_foreign_set(
    tfrecord_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    paths = expand(str(tfrecord_set.parent / "out-train-*-of-*.tfrecord"))
    with ForeignReader("out-train", TfrecordFiles(paths, ForeignOptions())) as foreign:
        assert len(foreign) == 200
        assert foreign.manifest.classes == CLASSES.classes
        ours = TfrecordReader(tfrecord_set)
        jpgs = ours.values(np.arange(200))
        assert foreign.values(np.arange(200)) == [jpg or None for jpg in jpgs]  # an empty image is none
        assert json.loads(bytes(foreign.view(7, "json"))) == {"key": "00000007", "path": "7.jpg"}


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
