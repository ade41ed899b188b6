"""The TFRecord container: right data, names and features as others know them, the same bytes after any kill."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lmdb_containers import Fields, expected, read_all, samples
from lmdb_containers import build as build_lmdb
from PIL import Image
from tfrecord_messages import Example, values
from tfrecord_sets import CLASSES, build, contents, shards

from iofast import FastDataset, FastLoader, open_reader, open_writer
from iofast import transforms as T
from iofast.containers.base import Description
from iofast.containers.file_bytes import FileBytes
from iofast.containers.lmdb import LmdbReader
from iofast.containers.shards import expand
from iofast.containers.tfrecord import TfrecordReader
from iofast.containers.tfrecord_framing import FOOT, HEAD, frames, read_data, unmask
from iofast.errors import TargetError
from iofast.foreign.options import ForeignOptions
from iofast.foreign.reader import ForeignReader
from iofast.foreign.tfrecord import TfrecordFiles
from iofast.record import ImageInfo


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 records with holes in their keys, two splits, many shards. Not to be changed."""
    path = tmp_path_factory.mktemp("tfrecord") / "out.tfrecord"
    build(path, samples(), CLASSES)
    return path


def messages(path: Path) -> list[dict[str, Any]]:
    """Every Example of a shard as protobuf reads it: a value, or a list where there are several."""
    data = FileBytes(str(path))
    read = (values(Example.FromString(read_data(data, frame))) for frame in frames(data))
    return [{name: own[0] if len(own) == 1 else own for name, (_, own) in each.items()} for each in read]


def test_round_trip(container: Path) -> None:
    with TfrecordReader(container) as reader:
        assert read_all(reader) == expected(samples())
        located = reader.locate(np.arange(300))
        for i, (position, _, info, _) in enumerate(samples()):
            row = (located.position[i], located.label[i], located.width[i], located.height[i], located.orientation[i])
            assert row == (position, info.label, info.width, info.height, info.orientation)
        assert reader.name(299) == f"{shards(container)[-1]}: {samples()[299][0]:08d}"
        copy = pickle.loads(pickle.dumps(reader))
        assert copy.values(np.arange(300), "json") == reader.values(np.arange(300), "json")


def test_manifest_and_names(container: Path) -> None:
    manifest = TfrecordReader(container).manifest
    assert manifest.splits == {"train": ((0, 200),), "val": ((200, 300),)}
    assert (manifest.classes, manifest.seed, manifest.fields) == (CLASSES.classes, 3, ("cls", "jpg", "json"))
    names = {split: [s.name for s in manifest.shards if f"out-{split}-" in s.name] for split in ("train", "val")}
    for split, own in names.items():
        assert own == [f"out-{split}-{i:05d}-of-{len(own):05d}.tfrecord" for i in range(len(own))]
        assert len(own) > 4
    sidecars = ["out.tfrecord.index", "out.tfrecord.manifest"]
    assert sorted(contents(container.parent)) == sorted([*names["train"], *names["val"], *sidecars])
    for shard in manifest.shards:
        assert shard.size == (container.parent / shard.name).stat().st_size <= 60_000
        assert len(messages(container.parent / shard.name)) == shard.count


def test_what_others_find(container: Path) -> None:
    found = [message for path in shards(container) for message in messages(path)]
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
    fields: Fields = {"cls": b"0", "txt": b"", "key": b"mine", "png": b"second", "yuv": bytes(6)}
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


field_names = st.sampled_from(["jpg", "png", "webp", "txt", "seg.png", "key", "a", "a-b", "z" * 64])


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.dictionaries(field_names, st.binary(max_size=300), min_size=1, max_size=5)),
        max_size=12,
    ),
    st.integers(1, 2000),
)
@settings(max_examples=25, deadline=None)
def test_any_records_come_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, Fields]], size: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "out.tfrecord"
    position, written = -1, []
    for step, fields in steps:
        position += step
        written.append((position, fields, ImageInfo(), "all"))
    build(path, written, size=size)
    with TfrecordReader(path) as reader:
        assert read_all(reader) == expected(written)
        for i in range(len(written)):
            reader.check(i)


def test_index_of_whole_records(container: Path) -> None:
    with TfrecordReader(container) as reader:
        places = reader.examples(np.arange(300))
        for place in places.tolist():
            file, offset, length, crc = place
            data = shards(container)[file].read_bytes()[offset : offset + length]
            assert google_crc32c.value(data[HEAD:-FOOT]) == crc == unmask(int.from_bytes(data[-FOOT:], "little"))
        with pytest.raises(IndexError):
            reader.examples(np.array([300]))


def test_the_same_records_as_lmdb(container: Path, tmp_path: Path) -> None:
    manifest = build_lmdb(tmp_path / "out.lmdb", samples(), CLASSES)
    assert TfrecordReader(container).manifest.fingerprint == manifest.fingerprint
    assert list(TfrecordReader(container)) == list(LmdbReader(tmp_path / "out.lmdb"))


def test_read_without_the_manifest_as_a_foreign_set(
    container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    paths = expand(str(container.parent / "out-train-*-of-*.tfrecord"))
    with ForeignReader("out-train", TfrecordFiles(paths, ForeignOptions())) as foreign:
        assert len(foreign) == 200
        assert foreign.manifest.classes == CLASSES.classes
        ours = TfrecordReader(container)
        jpgs = ours.values(np.arange(200))
        assert foreign.values(np.arange(200)) == [jpg or None for jpg in jpgs]  # an empty image is none
        assert json.loads(bytes(foreign.view(7, "json"))) == {"key": "00000007", "path": "7.jpg"}


# Through the front door.


def test_written_and_read_by_name(tmp_path: Path) -> None:
    path = tmp_path / "train.tfrecord"
    with open_writer(path, classes=["cat", "dog"], recipe={"label_base": 1}, shard_size=2000) as writer:
        for number in range(20):
            writer.write({"jpg": jpeg(number), "cls": number % 2, "txt": f"number {number}"})
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
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "train-00000-of-00001.tfrecord",
        "train.tfrecord.index",
        "train.tfrecord.manifest",
    ]


def test_the_loader_gives_the_same_ids_and_pixels_as_from_lmdb(tmp_path: Path) -> None:
    for name, size in (("out.lmdb", None), ("out.tfrecord", 3000)):
        with open_writer(tmp_path / name, shard_size=size) as writer:
            for number in range(24):
                writer.write({"jpg": jpeg(number), "cls": number})
    batches = []
    for name in ("out.lmdb", "out.tfrecord"):
        transform = [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]
        loader = FastLoader(
            FastDataset(tmp_path / name), batch_size=5, shuffle=True, transform=transform, num_workers=2
        )
        batches.append([(images.numpy(), labels.numpy()) for images, labels in loader])
    assert len(batches[0]) == 5
    for ours, theirs in zip(*batches, strict=True):
        assert np.array_equal(ours[0], theirs[0])
        assert np.array_equal(ours[1], theirs[1])


def jpeg(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (5, 6, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize((40, 30 + number)).save(out, "jpeg")
    return out.getvalue()
