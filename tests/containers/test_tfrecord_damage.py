"""TFRecord sets: the same bytes after any kill, refusals, and damage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lmdb_containers import expected, sample, samples
from tar_sets import build, contents, shards

from iofast.containers import shard_files
from iofast.containers.base import Description
from iofast.containers.index import IMAGE_ROW, IMAGES, Stamp, encode_chunk
from iofast.containers.shards import write_index
from iofast.containers.tfrecord import TfrecordReader, TfrecordWriter
from iofast.errors import ContainerError, OptionError, UnfinishedError
from iofast.record import ImageInfo

# Resuming.


def test_resume_after_a_kill_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill interrupts a write, and a part of its bytes is in the file."""
    written = [sample(i, 200 + i, "train" if i < 12 else "val") for i in range(20)]
    (tmp_path / "whole").mkdir()
    build(tmp_path / "whole" / "out.tfrecord", written, shard_size=2500)
    wanted = contents(tmp_path / "whole")
    assert len(wanted) > 6
    plain = shard_files.write
    for kill in (*range(10), *range(10, 46, 3)):
        folder = tmp_path / str(kill)
        folder.mkdir()
        left = [kill, kill % 3 if kill < 36 else 0]  # writes until each kill: of the first run, then of its successor
        for count in left:
            _kill_after(count, monkeypatch)
            with pytest.raises(KeyboardInterrupt):
                build(folder / "out.tfrecord", written, shard_size=2500)
            monkeypatch.setattr(shard_files, "write", plain)
        with pytest.raises(UnfinishedError):
            TfrecordReader(folder / "out.tfrecord")
        build(folder / "out.tfrecord", written, shard_size=2500)
        assert contents(folder) == wanted


def _kill_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = shard_files.write
    left = [count]

    def write(fd: int, pieces: Any, offset: int | None) -> None:
        left[0] -= 1
        if left[0] < 0:
            data = b"".join(pieces)
            plain(fd, [data[: len(data) * (count % 4) // 4]], offset)
            raise KeyboardInterrupt
        plain(fd, pieces, offset)

    monkeypatch.setattr(shard_files, "write", write)


@pytest.mark.parametrize("other", [Description(recipe={"label_base": 1}), Description(classes=tuple("tuvwxyz"))])
def test_what_was_written_with_other_options_is_not_kept(tmp_path: Path, other: Description) -> None:
    writer = TfrecordWriter(tmp_path, "out.tfrecord", other)
    writer.write(*sample(0))
    writer.abort()
    writer = TfrecordWriter(tmp_path, "out.tfrecord", Description())
    assert writer.resume() == (0, -1)
    writer.abort()


# Refusals and damage.


def test_what_a_writer_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="label_base must be 0 or 1, found 2"):
        TfrecordWriter(tmp_path, "out.tfrecord", Description(recipe={"label_base": 2}))
    writer = TfrecordWriter(tmp_path, "out.tfrecord", Description(classes=("a",)))
    writer.write(0, {"cls": b"0"}, ImageInfo(0), "all")
    with pytest.raises(ContainerError, match="other class names or another label base"):
        writer.finish(Description(classes=("b",)))
    monkeypatch.setattr("iofast.containers.tfrecord_writer.MAX_DATA", 100_000)
    with pytest.raises(ContainerError, match="record 1 has 100128 bytes, more than one TFRecord can hold: 100000"):
        writer.write(1, {"jpg": bytes(100_000)}, ImageInfo(), "all")
    writer.write(1, {"jpg": b"z"}, ImageInfo(), "all")  # nothing of the illegal record is left
    assert writer.finish(Description(classes=("a",))).count == 2


def test_an_index_that_points_elsewhere(tfrecord_set: Path, tmp_path: Path) -> None:
    """Right checksums, impossible places."""
    data = contents(tfrecord_set.parent)
    for offset, length in (((1 << 48) - 2, 5), (0, 0xFFFFFFFF)):
        for name, each in data.items():
            (tmp_path / name).write_bytes(each)
        rows = np.zeros(300, IMAGE_ROW)
        rows["place"], rows["length"], rows["label"] = 1 << 51 | offset, length, -1
        chunk = encode_chunk({IMAGES: rows.tobytes()}, 0, 300, 0, Stamp())
        write_index(tmp_path / "out.tfrecord.index", [chunk])
        reader = TfrecordReader(tmp_path / "out.tfrecord")
        with pytest.raises(ContainerError, match="outside"):
            reader.locate(np.array([0]))


def test_whole_records_that_the_manifest_does_not_count(tfrecord_set: Path, tmp_path: Path) -> None:
    for name, each in contents(tfrecord_set.parent).items():
        (tmp_path / name).write_bytes(each)
    reader = TfrecordReader(tmp_path / "out.tfrecord")
    shard = shards(tmp_path / "out.tfrecord")[0]
    places = list(reader.examples(0))
    shard.write_bytes(shard.read_bytes()[: places[-1][0]])
    with pytest.raises(ContainerError, match=f"{shard} has {len(places) - 1} records, expected {len(places)}"):
        list(reader.examples(0))


def test_damaged_shards(tfrecord_set: Path, tmp_path: Path) -> None:
    for name, data in contents(tfrecord_set.parent).items():
        (tmp_path / name).write_bytes(data)
    copy = tmp_path / "out.tfrecord"
    first = shards(copy)[0]
    whole, records = first.read_bytes(), expected(samples())
    count = TfrecordReader(copy).manifest.shards[0].count
    for byte in range(0, len(whole), 1499):
        first.write_bytes(whole[:byte] + bytes([whole[byte] ^ 8]) + whole[byte + 1 :])
        reader = TfrecordReader(copy)
        for field in ("jpg", "cls", "json"):
            values = reader.values(np.arange(count), field, failed={})
            assert all(value in (None, record.fields[field]) for value, record in zip(values, records, strict=False))
        with pytest.raises(ContainerError, match=str(first)):
            list(reader.walk(0))
    first.write_bytes(whole[:-1])
    with pytest.raises(ContainerError, match=f"{first} was cut off"):
        TfrecordReader(copy)
    os.unlink(first)
    with pytest.raises(ContainerError, match=f"{first} cannot be read"):
        TfrecordReader(copy)
