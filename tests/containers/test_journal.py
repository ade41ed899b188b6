"""The journal: finished blocks survive any kill, and damage is always noticed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iofast.containers.journal import (
    HEADER_SIZE,
    Block,
    JournalFailure,
    JournalRecord,
    JournalWriter,
    read_block,
    read_blocks,
    scan,
)
from iofast.errors import ContainerError, TargetError
from iofast.record import ImageInfo

sides = st.integers(0, (1 << 31) - 1)
infos = st.builds(ImageInfo, st.integers(-1, (1 << 31) - 1), sides, sides, st.integers(1, 8))
fields = st.dictionaries(st.sampled_from(["jpg", "cls", "json", "seg.png"]), st.binary(max_size=50), max_size=4)
records = st.builds(JournalRecord, st.integers(0, (1 << 64) - 1), st.integers(0, 65_535), infos, fields)
failures = st.builds(JournalFailure, st.integers(0, 1 << 40), st.binary(max_size=30), st.text(max_size=30))
blocks = st.builds(
    Block, st.integers(0, 1 << 40), st.lists(records, max_size=5).map(tuple), st.lists(failures, max_size=3).map(tuple)
)


def some_block(chunk: int) -> Block:
    record = JournalRecord(chunk * 10, 1, ImageInfo(3, 640, 480, 6), {"jpg": bytes([chunk]) * 50, "cls": b"3"})
    return Block(chunk, (record,), (JournalFailure(chunk * 10 + 1, b"a/\xff.jpg", "truncated"),))


def append(writer: JournalWriter, block: Block) -> tuple[int, int]:
    return writer.append(block.chunk, block.records, block.failures)


def journal(path: Path, count: int = 3) -> list[tuple[int, int]]:
    with JournalWriter(path) as writer:
        return [append(writer, some_block(chunk)) for chunk in range(count)]


@given(st.lists(blocks, max_size=5, unique_by=lambda block: block.chunk))
@settings(max_examples=40)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, written: list[Block]) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    with JournalWriter(path) as writer:
        places = [append(writer, block) for block in written]
        assert [read_block(path, offset) for offset, _ in places] == written  # while the writer is open
    assert list(read_blocks(path)) == written
    assert scan(path) == {block.chunk: place for block, place in zip(written, places, strict=True)}
    assert path.stat().st_size == sum(length for _, length in places)


def test_text_that_is_no_unicode_survives(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "j") as writer:
        writer.append(0, [], [JournalFailure(0, b"x", "bad name \udcff")])
    assert read_block(tmp_path / "j", 0).failures[0].reason == "bad name \\udcff"


def test_a_torn_end_is_left_out_at_every_length(tmp_path: Path) -> None:
    path = tmp_path / "j"
    places = journal(path)
    data = path.read_bytes()
    whole = [offset + length for offset, length in places]
    for length in range(len(data)):
        path.write_bytes(data[:length])
        sound = sum(end <= length for end in whole)
        assert [block.chunk for block in read_blocks(path)] == list(range(sound))


@pytest.mark.parametrize("tail", [b"I", bytes(1000), b"IFJB" + bytes(100), b"x" * 5000])
def test_reopening_goes_on_behind_the_last_whole_block(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "j"
    journal(path, 2)
    with path.open("ab") as file:
        file.write(tail)
    with JournalWriter(path) as writer:
        offset, _ = append(writer, some_block(7))
    assert [block.chunk for block in read_blocks(path)] == [0, 1, 7]
    assert read_block(path, offset) == some_block(7)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "j"
    places = journal(path, 2)
    data = path.read_bytes()
    (first, length), (second, _) = places
    for place in range(first, first + length):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(ContainerError, match=f"{path}: block at offset 0: "):
            read_block(path, first)
        assert read_block(path, second) == some_block(1)
        assert scan(path) == {}  # blocks after damage are not trusted


def test_no_block_where_there_is_none(tmp_path: Path) -> None:
    (_, length), *_ = journal(tmp_path / "j")
    for offset in (1, length - 1, 1 << 40):
        with pytest.raises(ContainerError, match=f"block at offset {offset}"):
            read_block(tmp_path / "j", offset)


def test_wrong_contents_with_right_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right checksums around wrong contents: counts and lengths beyond the body, illegal names."""
    path = tmp_path / "j"
    good = JournalRecord(1, 0, ImageInfo(), {"jpg": b"x" * 20})
    from iofast.containers import journal as module

    encoded = b"".join(module._encode_records([good]))
    for body in (
        encoded[:-1],
        encoded + b"x",
        encoded.replace(b"jpg", b"J\xffg"),
        encoded[:27] + b"\xff" + encoded[28:],
    ):
        monkeypatch.setattr(module, "_encode_records", lambda _, body=body: [body])
        with JournalWriter(path) as writer:
            offset, _ = writer.append(0, [good])
        with pytest.raises(ContainerError, match="block at offset"):
            read_block(path, offset)


def test_of_a_chunk_done_twice_the_first_counts(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "j") as writer:
        first = writer.append(4, [])
        writer.append(4, some_block(4).records)
    assert scan(tmp_path / "j") == {4: first}


def test_illegal_fields_are_refused_when_written(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "j") as writer:
        with pytest.raises(ContainerError, match="field name"):
            writer.append(0, [JournalRecord(0, 0, ImageInfo(), {"a b": b""})])
        append(writer, some_block(1))
    assert [block.chunk for block in read_blocks(tmp_path / "j")] == [1]


def test_a_journal_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no such file or directory"):
        JournalWriter(tmp_path / "nowhere" / "j")


def test_a_full_disk_leaves_whole_blocks(tmp_path: Path) -> None:
    """A file-size limit in place of a full disk. It cuts a block in two, and the half is removed."""
    program = f"""
import resource, signal
from iofast.containers.journal import *
from iofast.errors import TargetError
from iofast.record import ImageInfo
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, {resource.RLIM_INFINITY}))
writer = JournalWriter({str(tmp_path / "j")!r})
try:
    for chunk in range(20):
        writer.append(chunk, [JournalRecord(chunk, 0, ImageInfo(), {{"jpg": bytes(3000)}})])
except TargetError as error:
    print(chunk, error)
writer.append(99, [])
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.startswith("3 ")
    assert "cannot be written: file too large" in run.stdout
    assert [block.chunk for block in read_blocks(tmp_path / "j")] == [0, 1, 2, 99]


def test_what_was_reported_survives_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "j"
    program = f"""
import sys
from iofast.containers.journal import *
from iofast.record import ImageInfo
with JournalWriter({str(path)!r}) as writer:
    for chunk in range(1_000_000):
        record = JournalRecord(chunk, 0, ImageInfo(), {{"jpg": bytes([chunk % 256]) * 300_000}})
        print(chunk, *writer.append(chunk, [record]), flush=True)
"""
    worker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    with worker, worker.stdout:
        reported = [worker.stdout.readline() for _ in range(30)]
        time.sleep(0.005)
        worker.send_signal(signal.SIGKILL)
        reported += worker.stdout.read().splitlines(keepends=True)
    whole = [line.split() for line in reported if line.endswith("\n")]  # the last one may have been cut by the kill
    places = {int(chunk): (int(at), int(length)) for chunk, at, length in whole}
    found = scan(path)
    assert places.items() <= found.items()
    assert len(found) <= len(places) + 1
    for chunk, (offset, _) in places.items():
        assert read_block(path, offset).records[0].fields["jpg"] == bytes([chunk % 256]) * 300_000


def test_scanning_needs_the_memory_of_one_block(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "j") as writer:
        for chunk in range(200):
            writer.append(chunk, [JournalRecord(chunk, 0, ImageInfo(), {"jpg": bytes(1 << 20)})])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(scan(tmp_path / "j")) == 200
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 << 10  # KiB
    assert os.path.getsize(tmp_path / "j") == 200 * (HEADER_SIZE + 26 + 5 + 3 + (1 << 20))
