"""Raw pixels looked at through a map: pixels and statuses are those of reading, whatever becomes of the file."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_images import Batch, View, batch_of, in_a_file, jpeg, native, photo, upright
from raw_images import KINDS, cases, payload, raw_batch, run, strips_of, whole

from iofast.containers.base import UNREADABLE, Description
from iofast.containers.lmdb import LmdbReader, LmdbWriter
from iofast.kernel.contract import DecodeOptions, Kind, Source, Status
from iofast.record import ImageInfo

pytestmark = pytest.mark.skipif(
    native is None or sys.platform != "linux", reason="only the native kernel maps, on Linux"
)

SIZE = (64, 48)
ROWS = 8


@contextmanager
def mapped(
    kind: Kind, payloads: list[bytes], size: tuple[int, int], orientation: int, checked: bool
) -> Iterator[Source]:
    """Raw images of one upright size in a file that is mapped, with checksums of strips or with none."""
    stored = size[::-1] if orientation >= 5 else size
    source, fd = in_a_file(Batch(*raw_batch(kind, payloads, [size] * len(payloads), orientation, checked)))
    kept = native.map_file(fd, os.fstat(fd).st_size)
    assert kept is not None
    strips = np.array([strips_of(kind, data, *stored) for data in payloads])
    try:
        yield (*source[:6], strips if checked else None)
    finally:
        del kept
        os.close(fd)


def looked_at(file: int | Path) -> int:
    """Bytes of a file that this process sees through maps."""
    inode, seen, own = str(os.stat(file).st_ino), 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *words = line.split()
        if not name.endswith(":"):
            own = words[3] == inode
        elif own and name == "Rss:":
            seen += int(words[0]) << 10
    return seen


def images(kind: Kind) -> list[bytes]:
    return [payload(kind, photo(*SIZE, seed)) for seed in range(ROWS)]


@settings(max_examples=60)
@given(case=cases(), checked=st.booleans())
def test_pixels_are_those_that_are_read(case: tuple[Kind, tuple[int, int], View, int, str], checked: bool) -> None:
    kind, size, view, orientation, name = case
    data = payload(kind, photo(*(size[::-1] if orientation >= 5 else size)))
    unchecked, _alive = raw_batch(kind, [data], [size], orientation)
    wanted = run(native, unchecked, [view], DecodeOptions(filter=name))
    with mapped(kind, [data], size, orientation, checked) as source:
        found = run(native, source, [view], DecodeOptions(filter=name))
        assert looked_at(int(source[0][0])) > 0
    assert found[0] == wanted[0] == [Status.OK]
    np.testing.assert_array_equal(found[1], wanted[1])


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", [0, 1, 4096, 12_288, 22_000, -4096, -1])
def test_a_file_that_is_cut_off_gives_what_reading_it_gives(kind: Kind, checked: bool, left: int) -> None:
    """At a page's end the signal comes, within a page zeros do: neither is a pixel, and later calls read."""
    payloads, views = images(kind), [whole(*SIZE)] * ROWS
    views[2] = View((3, 2, 50, 9, *SIZE, 0, 0), SIZE)  # whose bytes may be there although its image's end is not
    with mapped(kind, payloads, SIZE, 1, checked) as source:
        fd = int(source[0][0])
        good = run(native, source, views)
        assert good[0] == [Status.OK] * ROWS
        assert looked_at(fd) > 0
        size = os.fstat(fd).st_size
        os.ftruncate(fd, left % size)
        unmapped = os.dup(fd)
        wanted = run(native, (np.full(ROWS, unmapped, np.int32), *source[1:]), views)
        os.close(unmapped)
        assert set(wanted[0]) - {Status.OK} == {Status.SHORT}
        for _ in range(2):
            status, pixels = run(native, source, views)
            assert status == wanted[0]
            for row, found in enumerate(pixels):
                np.testing.assert_array_equal(found, good[1][row] * (status[row] == Status.OK))
        assert looked_at(fd) == 0 or left == -1  # every page is still there, and none is looked at


def test_another_file_under_the_same_number_is_not_taken_for_it(tmp_path: Path) -> None:
    payloads, views = images(Kind.RGB), [whole(*SIZE)] * ROWS
    with mapped(Kind.RGB, payloads, SIZE, 1, checked=False) as source:
        (tmp_path / "other").write_bytes(b"".join(payloads[::-1]))
        other = os.open(tmp_path / "other", os.O_RDONLY)
        os.dup2(other, int(source[0][0]))
        os.close(other)
        found = run(native, source, views)
    wanted = run(native, raw_batch(Kind.RGB, payloads[::-1], [SIZE] * ROWS).source, views)
    assert found[0] == wanted[0]
    np.testing.assert_array_equal(found[1], wanted[1])


def test_a_payload_that_is_not_all_in_the_map_is_read() -> None:
    """As a hostile index could have it: behind the map there is anybody's memory."""
    (data,) = images(Kind.RGB)[:1]
    with mapped(Kind.RGB, [data], SIZE, 1, checked=False) as source:
        for offset, wanted in (
            (1, Status.SHORT),
            (1 << 40, Status.SHORT),
            ((1 << 64) - 5, Status.SHORT),
            (0, Status.OK),
        ):
            moved = (source[0], np.array([offset], np.uint64), *source[2:])
            assert run(native, moved, [whole(*SIZE)])[0] == [wanted]
            assert (looked_at(int(source[0][0])) > 0) == (wanted == Status.OK)


def test_beside_other_rows() -> None:
    """Rows in memory, JPEGs, and descriptors that are none: each as without the map, which serves its own rows."""
    payloads, views = images(Kind.RGB), [whole(*SIZE)] * ROWS
    memory = raw_batch(Kind.RGB, payloads, [SIZE] * ROWS).source
    encoded = jpeg(photo(*SIZE))
    there = batch_of([encoded]).source
    with mapped(Kind.RGB, payloads, SIZE, 1, checked=False) as source:
        fds, offsets, lengths, raw = (source[0].copy(), source[1].copy(), source[2].copy(), memory[5])
        fds[:4], offsets[:2] = (-1, -1, UNREADABLE, -7), memory[1][:2]
        assert raw is not None
        fds[4], offsets[4], lengths[4], raw[4] = -1, there[1][0], there[2][0], 0
        mixed = (fds, offsets, lengths, None, source[4], raw, None)
        wanted = [Status.OK, Status.OK, Status.READ, Status.READ, *[Status.OK] * 4]
        status, pixels = run(native, mixed, views)
        assert status == wanted
        assert looked_at(int(fds[7])) > 0
        os.ftruncate(int(fds[7]), 7 * len(payloads[0]))
        again, others = run(native, mixed, views)
    assert again == [*wanted[:7], Status.SHORT]
    np.testing.assert_array_equal(others[:7], pixels[:7])
    np.testing.assert_array_equal(pixels[5:].reshape(3, -1), [list(each) for each in payloads[5:]])
    np.testing.assert_array_equal(pixels[4], np.asarray(upright(encoded)))


def test_a_file_that_memory_cannot_hold_is_read(tmp_path: Path) -> None:
    with (tmp_path / "vast").open("wb+") as file:
        file.truncate(1 << 42)
        assert native.map_file(file.fileno(), 1 << 42) is None
        assert native.map_file(file.fileno(), 1 << 20) is not None


@pytest.fixture
def container(tmp_path: Path) -> Path:
    writer = LmdbWriter(tmp_path / "raw.lmdb")
    for position, data in enumerate(images(Kind.RGB)):
        writer.write(position, {"rgb": data}, ImageInfo(-1, *SIZE, 1), "all")
    writer.finish(Description())
    return tmp_path / "raw.lmdb"


def maps_of(path: Path) -> int:
    return sum(line.endswith(str(path)) for line in Path("/proc/self/maps").read_text().splitlines())


def decoded(reader: LmdbReader) -> list[int]:
    located = reader.locate(np.arange(ROWS))
    with reader.payloads(located, 0, ROWS) as source:
        return run(native, source, [whole(*SIZE)] * ROWS)[0]


def test_a_reader_maps_a_file_of_raw_pixels_while_it_is_open(container: Path, tmp_path: Path) -> None:
    for _ in range(100):
        with LmdbReader(container) as reader:
            assert maps_of(container) == 1
            with reader.payloads(reader.locate(np.arange(ROWS)), 0, ROWS):
                reader.close()
                assert maps_of(container) == 1
        assert maps_of(container) == 0
    writer = LmdbWriter(tmp_path / "other.lmdb")
    writer.write(0, {"jpg": b"x"}, ImageInfo(-1, *SIZE, 1), "all")
    writer.finish(Description())
    with LmdbReader(tmp_path / "other.lmdb"):
        assert maps_of(tmp_path / "other.lmdb") == 0


def test_more_readers_than_maps(container: Path) -> None:
    gc.collect()  # a reader that another test left in a cycle has one of them
    for _ in range(2):
        readers = [LmdbReader(container) for _ in range(70)]
        assert maps_of(container) == 64
        assert [decoded(reader) for reader in readers] == [[Status.OK] * ROWS] * 70
        del readers
        assert maps_of(container) == 0
