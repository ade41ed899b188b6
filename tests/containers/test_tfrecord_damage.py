"""TFRecord sets: the same bytes after any kill, refusals, and damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lmdb_containers import sample
from tar_sets import build, contents

from iofast.containers import shard_writer
from iofast.containers.manifest import Description
from iofast.containers.tfrecord import TfrecordReader, TfrecordWriter
from iofast.containers.writer import Section
from iofast.errors import ContainerError, OptionError, UnfinishedError
from iofast.record import ImageInfo


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
