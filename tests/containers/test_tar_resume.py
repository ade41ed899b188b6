"""A set that was interrupted anywhere is resumed; its final bytes are those of an uninterrupted run."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lmdb_containers import Sample, sample
from tar_sets import build, contents, write

from iofast.containers import shard_files
from iofast.containers.base import Description, Kept
from iofast.containers.shards import ShardCut
from iofast.containers.tar import TarWriter
from iofast.errors import TargetError

SHARD = 30_000
RECORDS = [sample(i + i // 5, (i * 700) % 3000, "train" if i < 14 else "val") for i in range(20)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    build(folder / "x.tar", RECORDS, shard_size=SHARD)
    return contents(folder)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a run that was killed after its last record. Do not change them."""
    folder = tmp_path_factory.mktemp("begun")
    writer = TarWriter(folder, "x.tar", cut=ShardCut(SHARD))
    write(writer, RECORDS)
    writer.abort()
    return folder


def go_on(folder: Path, records: Sequence[Sample] = RECORDS) -> tuple[Kept, dict[str, bytes]]:
    """Resume, write the rest, finish; returns the kept records and the files under their final names."""
    writer = TarWriter(folder, "x.tar", cut=ShardCut(SHARD))
    kept = writer.resume()
    assert kept.records == sum(position <= kept.position for position, *_ in records)
    write(writer, [record for record in records if record[0] > kept.position])
    writer.finish(Description())
    return kept, {final: (folder / staged).read_bytes() for staged, final in writer.files.items()}


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("shard-*.tar"))


def of_records(folder: Path) -> list[Path]:
    return sorted(folder.glob("rows-*"))


def test_full_shards_are_kept(begun: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    """All but the last, which was not full when the run was killed."""
    shutil.copytree(begun, tmp_path / "again")
    written = {path.name: path.stat().st_mtime_ns for path in shards(begun)}
    kept, found = go_on(tmp_path / "again")
    assert found == whole
    assert 10 < kept.records < 20
    later = {path.name: path.stat().st_mtime_ns for path in shards(tmp_path / "again")}
    assert [name for name in written if later[name] != written[name]] == [max(written)]


@pytest.mark.parametrize("files", [shards, of_records])
def test_a_file_cut_anywhere(
    begun: Path, whole: dict[str, bytes], tmp_path: Path, files: Callable[[Path], list[Path]]
) -> None:
    for number, path in enumerate(files(begun)):
        size = path.stat().st_size
        for at in [*range(0, size, max(1, size // 12)), size - 1]:
            folder = tmp_path / f"{number}-{at}"
            shutil.copytree(begun, folder)
            os.truncate(folder / path.name, at)
            for later in files(folder)[number + 1 :]:  # after a kill they are missing, after a power failure perhaps
                if at % 2:
                    later.unlink()
            assert go_on(folder)[1] == whole, (number, at)
            shutil.rmtree(folder)


def test_damage_in_what_was_kept_is_noticed(begun: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    """A flipped bit, zeros, rubbish behind the end: the final bytes are the same."""
    rng = random.Random(2)

    def flip(data: bytearray) -> None:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)

    def zero(data: bytearray) -> None:
        at = rng.randrange(len(data)) & ~511
        data[at : at + 512] = bytes(len(data[at : at + 512]))

    def more(data: bytearray) -> None:
        data += rng.randbytes(rng.randrange(1, 20_000))

    kinds: tuple[Callable[[bytearray], None], ...] = (flip, zero, more)
    for round_ in range(36):
        folder = tmp_path / str(round_)
        shutil.copytree(begun, folder)
        path = rng.choice([*shards(folder), *of_records(folder)])
        data = bytearray(path.read_bytes())
        kinds[round_ % 3](data)
        path.write_bytes(data)
        assert go_on(folder)[1] == whole, (round_, path.name)
        shutil.rmtree(folder)


def test_finished_but_not_published(begun: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "again"
    shutil.copytree(begun, folder)
    go_on(folder)
    kept, found = go_on(folder)
    assert kept == (20, RECORDS[-1][0])
    assert found == whole


def test_other_options_keep_nothing(begun: Path, tmp_path: Path) -> None:
    """The plan of a packing run refuses other options; the writer alone keeps no shard of another cut."""
    build(tmp_path / "x.tar", RECORDS, shard_size=20_000)
    shutil.copytree(begun, tmp_path / "again")
    writer = TarWriter(tmp_path / "again", "x.tar", cut=ShardCut(20_000))
    kept = writer.resume()
    assert kept == (0, -1)
    write(writer, [record for record in RECORDS if record[0] > kept.position])
    writer.finish(Description())
    for staged, final in writer.files.items():
        assert (tmp_path / "again" / staged).read_bytes() == (tmp_path / final).read_bytes()


def test_without_resuming_nothing_is_kept(begun: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    shutil.copytree(begun, tmp_path / "again")
    (tmp_path / "again" / "shard-000099.tar").touch()
    writer = TarWriter(tmp_path / "again", "x.tar", cut=ShardCut(SHARD))
    write(writer, RECORDS[:3])
    writer.finish(Description())
    assert len(shards(tmp_path / "again")) == 1
    assert list(writer.files.values()) == ["x-train-000000.tar", "x.tar.index", "x.tar.manifest"]


@given(st.binary(max_size=300), st.integers(0, 5000))
@settings(max_examples=60)
def test_any_list_of_records_is_read_or_left(tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int) -> None:
    folder = tmp_path_factory.mktemp("any")
    writer = TarWriter(folder, "x.tar", cut=ShardCut(1))
    write(writer, RECORDS[:5])
    writer.abort()
    own = bytearray((folder / "rows-000002").read_bytes())
    own[at : at + len(data)] = data
    (folder / "rows-000002").write_bytes(own)
    writer = TarWriter(folder, "x.tar", cut=ShardCut(1))
    assert 2 <= writer.resume().records <= 4
    writer.abort()


def test_shards_of_a_number_of_records(tmp_path: Path) -> None:
    """Counted by positions, from the start of each split: holes do not move the ends of shards."""
    cut = ShardCut(records=4, starts=(0, 14))
    every = [sample(i, 50, "train" if i < 14 else "val") for i in range(20)]
    found = []
    for name, missing in (("a", set[int]()), ("b", {0, 5, 14})):
        (tmp_path / name).mkdir()
        writer = TarWriter(tmp_path / name, "x.tar", cut=cut)
        write(writer, [record for record in every if record[0] not in missing])
        manifest = writer.finish(Description())
        found.append([(shard.name, shard.count) for shard in manifest.shards])
    assert [count for _, count in found[0]] == [4, 4, 4, 2, 4, 2]
    assert [count for _, count in found[1]] == [3, 3, 4, 2, 3, 2]
    same = [shards(tmp_path / name)[2].read_bytes() for name in "ab"]
    assert same[0] == same[1]


def test_a_full_disk_at_any_write(whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a write arrives, then the disk is full; the next run has room again."""
    real = os.pwritev, os.writev
    for step in range(0, 45, 2):
        folder, left = tmp_path / str(step), [step]
        folder.mkdir()

        def full(
            call: Callable[..., int], fd: int, pieces: Sequence[bytes], *place: int, left: list[int] = left
        ) -> int:
            left[0] -= 1
            if left[0] == 0:
                return call(fd, [b"".join(pieces)[: sum(map(len, pieces)) // 2]], *place)
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return call(fd, pieces, *place)

        def no_more(fd: int, *_: object, left: list[int] = left) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        writer = TarWriter(folder, "x.tar", cut=ShardCut(SHARD))
        with monkeypatch.context() as patch:
            patch.setattr(shard_files.os, "pwritev", lambda *a: full(real[0], *a))
            patch.setattr(shard_files.os, "writev", lambda *a: full(real[1], *a))
            patch.setattr(shard_files.os, "pwrite", no_more)
            patch.setattr(shard_files.os, "write", no_more)
            with pytest.raises(TargetError, match=r"x\.tar cannot be written: the disk is full"):
                write(writer, RECORDS)
            writer.abort()
        assert go_on(folder)[1] == whole
