"""The TFRecord container: names and features as other programs know them, and the index of whole records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from container_sets import picture
from lmdb_containers import Fields, expected, samples
from tar_sets import CLASSES, build, contents, shards
from tfrecord_messages import Example, values

from iofast import open_reader, open_writer
from iofast.containers.file_bytes import FileBytes
from iofast.containers.manifest import Description
from iofast.containers.shards import expand
from iofast.containers.tfrecord import TfrecordReader, frames, read_data
from iofast.errors import TargetError
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


# Through the front door.


def test_written_and_read_by_name(tmp_path: Path) -> None:
    path = tmp_path / "train.tfrecord"
    with open_writer(path, classes=["cat", "dog"], recipe={"label_base": 1}, shard_size=2000) as writer:
        for number in range(20):
            writer.write({"jpg": picture(number), "cls": number % 2, "txt": f"number {number}"})
    shards = sorted(each.name for each in tmp_path.glob("train-*"))
    assert shards == [f"train-{i:05d}-of-{len(shards):05d}.tfrecord" for i in range(len(shards))]
    assert messages(tmp_path / shards[1])[0]["image/class/label"] == 2
    assert messages(tmp_path / shards[1])[0]["image/class/text"] == b"dog"
    for name in (path, tmp_path / "train-*.tfrecord"):
        with open_reader(name) as reader:
            assert isinstance(reader, TfrecordReader)
            assert reader.values(np.arange(20), "txt") == [b"number %d" % number for number in range(20)]
    with pytest.raises(TargetError, match="exists already"):
        open_writer(path)
    with open_writer(path, overwrite=True) as writer:
        writer.write({"txt": "only"})
    names = ["train-00000-of-00001.tfrecord", "train.tfrecord.index", "train.tfrecord.manifest"]
    assert sorted(each.name for each in tmp_path.iterdir()) == names
