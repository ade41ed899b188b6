"""The LMDB container: equal bytes from several transactions, pieces of the index, large payloads, kills, full disks."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from lmdb_containers import build, expected, read_all, sample, sections, write

from iofast.containers import index, lmdb_writer
from iofast.containers.lmdb import LmdbReader, LmdbWriter
from iofast.containers.manifest import Description
from iofast.containers.writer import Section
from iofast.errors import TargetError
from iofast.record import ImageInfo


def test_same_records_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many transactions, several map sizes, a different field order in the mapping."""
    monkeypatch.setattr(lmdb_writer, "MAP_STEP", 1 << 20)
    many = [sample(i) for i in range(1200)]
    build(tmp_path / "a", many)
    build(tmp_path / "b", [(p, dict(reversed(f.items())), i, s) for p, f, i, s in many])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_all(LmdbReader(tmp_path / "a")) == expected(many)
    with lmdb.open(str(tmp_path / "a"), subdir=False, readonly=True, lock=False) as environment:
        assert environment.info()["last_txnid"] > 10
        assert environment.info()["map_size"] > 1 << 20


@pytest.mark.parametrize("held", [1 << 21, 0])
def test_more_than_one_block_of_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    for module in (index, lmdb_writer):
        monkeypatch.setattr(module, "BLOCK", 640)
    monkeypatch.setattr(index, "HELD", held)
    texts = {150: {"txt": b"t"}}
    records = [(i * 2, {"jpg": b"%d" % i} | texts.get(i, {}), ImageInfo(), "all") for i in range(250)]
    build(tmp_path / "x", records)
    reader = LmdbReader(tmp_path / "x")
    with lmdb.open(str(tmp_path / "x"), subdir=False, readonly=True, lock=False) as environment:
        assert environment.stat()["entries"] == 250 + 1 + 1 + 22  # of 13,568 bytes
    order = np.random.default_rng(0).permutation(250)
    assert (reader.positions(order) == order * 2).all()
    assert reader.values(order) == [b"%d" % i for i in order.tolist()]
    assert [row for row, value in enumerate(reader.values(np.arange(250), "txt")) if value is not None] == [150]


def test_large_payload_beside_small_transactions(tmp_path: Path) -> None:
    """A record larger than a transaction, and the map grown for it."""
    large = [sample(0, 10), sample(1, 40 << 20), sample(2, 10)]
    build(tmp_path / "out", large)
    assert LmdbReader(tmp_path / "out").record(1).fields["jpg"] == large[1][1]["jpg"]


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    """A file-size limit stands in for the disk: LMDB sees a failing write either way."""
    before, writer = resource.getrlimit(resource.RLIMIT_FSIZE), LmdbWriter(tmp_path, "out", Description())

    def fill() -> None:
        writer.begin(Section(0, "all", 0, 100))
        for position in range(100):
            writer.write(position, {"jpg": bytes(1 << 20)}, ImageInfo())
        writer.commit()

    resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 20, before[1]))  # Python ignores the signal
    try:
        with pytest.raises(TargetError, match="cannot be written") as caught:
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        writer.abort()
    assert "\n" not in str(caught.value)


def test_a_killed_run_goes_on_after_the_last_commit(tmp_path: Path) -> None:
    """Rows are stored before their transaction, index and manifest after the last one: a kill may lie between."""
    some = [sample(i, split="train" if i < 30 else "val") for i in range(60)]
    build(tmp_path / "whole", some)
    right = LmdbReader(tmp_path / "whole")
    all_sections = sections(some)
    for kill in range(len(all_sections)):
        folder = tmp_path / str(kill)
        folder.mkdir()
        first = LmdbWriter(folder, "x", Description())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LmdbWriter, "_commit", _killed_at(kill, LmdbWriter._commit))
            with pytest.raises(KeyboardInterrupt):
                write(first, some)
        first.abort()
        again = LmdbWriter(folder, "x", Description())
        assert again.resume(all_sections) == all_sections[kill:]
        write(again, some)
        with pytest.MonkeyPatch.context() as patch:  # and once more at the end
            patch.setattr(LmdbWriter, "_placed", _killed_at(0, LmdbWriter._placed))
            with pytest.raises(KeyboardInterrupt):
                again.finish()
        again.abort()
        last = LmdbWriter(folder, "x", Description())
        assert last.resume(all_sections) == []
        assert last.finish().fingerprint == right.manifest.fingerprint
        assert read_all(LmdbReader(folder / "x")) == expected(some)


def _killed_at(count: int, plain: Callable[..., Any]) -> Callable[..., Any]:
    left = [count]

    def counted(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return plain(*arguments)

    return counted


def test_far_positions(tmp_path: Path) -> None:
    positions = [(1 << 60) + 3 * number for number in range(50)]  # a float64 cannot tell neighbours apart
    writer = LmdbWriter(tmp_path, "x.lmdb", Description(), key_width=20)
    writer.begin(Section(0, "all", 0, 1 << 62))
    for position in positions:
        writer.write(position, {"txt": b"%d" % position}, ImageInfo())
    writer.finish()
    with LmdbReader(tmp_path / "x.lmdb") as reader:
        assert reader.positions(np.arange(len(reader))).tolist() == positions
        assert reader.record(5).fields == {"txt": b"%d" % positions[5]}


def test_a_file_that_lost_its_rows_is_written_anew(tmp_path: Path) -> None:
    sections = [Section(number, "all", 2 * number, 2 * number + 2) for number in range(2)]

    def written(writer: LmdbWriter, left: list[Section]) -> None:
        for section in left:
            writer.begin(section)
            for position in range(section.start, section.stop):
                writer.write(position, {"txt": b"%d" % position}, ImageInfo())
            writer.commit()

    first = LmdbWriter(tmp_path, "x.lmdb", Description())
    written(first, sections)
    first.abort()
    (tmp_path / sections[0].rows).unlink()
    again = LmdbWriter(tmp_path, "x.lmdb", Description())
    assert again.resume(sections) == sections
    written(again, sections)
    again.finish()
    with LmdbReader(tmp_path / "x.lmdb") as reader:
        assert [record.fields["txt"] for record in reader] == [b"0", b"1", b"2", b"3"]
