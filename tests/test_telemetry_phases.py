"""Phases of a step in the page: the bytes of a phase slot, names of any kind, torn writes, pages of version 1."""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stall_loaders import Time, timed

from iofast import telemetry
from iofast.stall import StallClock
from iofast.telemetry import LoaderInfo, LoaderReport, PhaseTotals, Slot, Totals
from iofast.telemetry.layout import (
    PHASE_SLOT_SIZE,
    PHASES,
    PHASES_AT,
    SEQUENCE,
    SIZE,
    SLOTS,
    decode_phases,
    encode_phases,
)

FIGURES = Totals(3, 7, 448, 6, 60_000, 5_000, 4_000, 300, 20_000, 123_456)
TOTALS = [("forward", PhaseTotals(7, 6, 600)), ("backward", PhaseTotals(5, 4, 300))]


@pytest.fixture(autouse=True)
def own_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    telemetry.close_page()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # other processes' pages are none of these tests' business
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("iofast.telemetry.reading._PATIENCE_S", 0)
    yield
    telemetry.close_page()


def only_loader() -> LoaderReport:
    (page,) = telemetry.pages()
    (loader,) = page.loaders
    return loader


def path_of_page() -> Path:
    (page,) = telemetry.pages()
    return page.path


# --- the bytes of a phase slot

counts = st.integers(0, (1 << 59) - 1)  # 8 of them added up have room
HOSTILE = ("", "\x1b[31m", "\udc80\udcff", "a" * 100, "é" * 40, "\u202eabc", "a\0b", "=cmd|", "日本" * 20)


@given(
    phases=st.lists(st.tuples(st.text(max_size=30) | st.sampled_from(HOSTILE), counts, counts, counts), max_size=12),
    on_device=st.booleans(),
)
def test_what_is_written_is_read(phases: list[tuple[str, int, int, int]], on_device: bool) -> None:
    given = [(name, PhaseTotals(*totals)) for name, *totals in phases]
    raw = encode_phases(9, given, on_device)
    assert len(raw) == PHASE_SLOT_SIZE - SEQUENCE.size
    found, device = decode_phases(raw, 9)
    told = given[:PHASES]
    assert device is on_device
    assert len(found) <= len(told)
    for at in range(3):  # names that were cut to the same are added up: nothing is lost
        assert sum(totals[at] for totals in found.values()) == sum(totals[at] for _, totals in told)
    assert all(name and name.isprintable() and len(name.encode()) <= 24 for name in found)
    for name, totals in told:
        if name.isascii() and name.isprintable() and 0 < len(name) <= 24 and [each for each, _ in told].count(name) < 2:
            assert found[name] >= totals
    with pytest.raises(ValueError, match="another loader"):
        decode_phases(raw, 10)


def test_bytes_are_where_the_format_says() -> None:
    """By the tables of docs/format.md, section 12, and nothing of layout.py."""
    first, slot = Slot(LoaderInfo("first")), Slot(LoaderInfo("second"))
    first.write(FIGURES)
    slot.write(FIGURES, None, TOTALS, on_device=True)
    raw = path_of_page().read_bytes()
    assert not any(raw[4352 : 4352 + 408])
    used = raw[4352 + 408 : 4352 + 2 * 408]
    assert struct.unpack_from("<QI", used) == (2, zlib.crc32(used[12:]))
    (serial,) = struct.unpack_from("<I", raw, 256 + 256 + 16)
    assert struct.unpack_from("<IBB", used, 12) == (serial, 1, 2)
    assert struct.unpack_from("<24s3Q", used, 24) == (b"forward".ljust(24, b"\0"), 7, 6, 600)
    assert struct.unpack_from("<24s3Q", used, 72) == (b"backward".ljust(24, b"\0"), 5, 4, 300)
    assert not any(used[18:24] + used[120:])
    assert not any(raw[4352 + 2 * 408 :])


def test_a_page_tells_phases_and_forgets_them_with_their_loader() -> None:
    slot = Slot(LoaderInfo("train"))
    slot.write(FIGURES, None, TOTALS, on_device=True)
    loader = only_loader()
    assert (loader.phases, loader.phases_on_device, loader.figures) == (dict(TOTALS), True, FIGURES)
    slot.close()
    Slot(LoaderInfo("all others")).write(FIGURES)
    slots = [Slot(LoaderInfo(str(number))) for number in range(SLOTS - 1)]
    for each in slots:  # the last one has the place that was given back
        each.write(FIGURES)
    (page,) = telemetry.pages()
    assert [loader.phases for loader in page.loaders] == [{}] * SLOTS


# --- torn writes, and older pages


def changed(number: int, at: int, new: bytes) -> telemetry.Page:
    path = path_of_page()
    raw = bytearray(path.read_bytes())
    at += PHASES_AT + number * PHASE_SLOT_SIZE
    raw[at : at + len(new)] = new
    copy = path.with_name("copy")
    copy.write_bytes(raw)
    page = telemetry.read_page(copy)
    assert page is not None
    return page


def test_each_changed_byte_of_a_phase_slot_is_noticed() -> None:
    slot = Slot(LoaderInfo("train"))
    slot.write(FIGURES, None, TOTALS)
    whole = path_of_page().read_bytes()[PHASES_AT:]
    for at in range(SEQUENCE.size, PHASE_SLOT_SIZE):
        page = changed(0, at, bytes([whole[at] ^ (1 + at % 255)]))
        assert (page.loaders, page.unreadable) == ((), 1), at
    assert changed(0, 0, SEQUENCE.pack(5)).unreadable == 1, "it is being written"
    assert changed(1, 0, SEQUENCE.pack(5)).unreadable == 0, "nobody's"


def test_phases_of_another_loader_are_not_taken_for_its_own() -> None:
    slot = Slot(LoaderInfo("train"))
    slot.write(FIGURES)
    page = changed(0, SEQUENCE.size, encode_phases(only_loader().serial + 1, TOTALS, False))
    assert (page.loaders, page.unreadable) == ((), 1)
    page = changed(0, SEQUENCE.size, encode_phases(only_loader().serial, TOTALS, False))
    assert page.loaders[0].phases == dict(TOTALS)


@pytest.mark.parametrize("head", [(9, 2, 1), (9, 0, 9)], ids=["an unknown clock", "nine phases"])
def test_what_no_loader_writes(head: tuple[int, int, int]) -> None:
    body = struct.pack("<IBB6x", *head).ljust(PHASE_SLOT_SIZE - 12, b"\0")
    with pytest.raises(ValueError, match="another loader"):
        decode_phases(struct.pack("<I", zlib.crc32(body)) + body, 9)
    negative = encode_phases(9, [("a", PhaseTotals(1, 1, (1 << 64) - 1))], False)
    with pytest.raises(ValueError, match="negative"):
        decode_phases(negative, 9)


def test_a_page_of_version_1_is_read_and_has_no_phases() -> None:
    slot = Slot(LoaderInfo("train"))
    slot.write(FIGURES, None, TOTALS)
    path = path_of_page()
    raw = path.read_bytes()
    old = raw[:8] + b"\1\0" + raw[10:28] + bytes(4) + raw[32:4352]
    copy = path.with_name("copy")
    copy.write_bytes(old)
    page = telemetry.read_page(copy)
    assert page is not None
    assert [(loader.info.name, loader.figures, loader.phases) for loader in page.loaders] == [("train", FIGURES, {})]
    for wrong in (old + bytes(SIZE - len(old)), raw[:4352], raw[:8] + b"\1\0" + raw[10:]):
        copy.write_bytes(wrong)  # the size or the header of another version
        assert telemetry.read_page(copy) is None


def test_no_reader_sees_half_of_a_write() -> None:
    slot, done = Slot(LoaderInfo("train")), threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            slot.write(FIGURES, None, [(name, PhaseTotals(*[number] * 3)) for name in "abcdefgh"])

    slot.write(FIGURES, None, [("a", PhaseTotals(0, 0, 0))])
    path, writing, seen = path_of_page(), threading.Thread(target=write), []
    writing.start()
    for _ in range(200):
        page = telemetry.read_page(path)
        assert page is not None
        for loader in page.loaders:
            values = {value for totals in loader.phases.values() for value in totals}
            assert len(values) == 1
            seen += values
    done.set()
    writing.join()
    assert seen == sorted(seen)


# --- what a clock tells


def test_a_meter_tells_its_phases_and_one_without_writes_nothing() -> None:
    time = Time()
    meter, plain = timed(time, [10] * 5), timed(time, [10] * 5)
    for _ in meter:
        with meter.step("forward"):
            time.go(30)
        with meter.step("\x1b[2Jback\nward"):
            time.go(20)
    list(plain)
    (page,) = telemetry.pages()
    assert page.loaders[0].phases == {
        "forward": PhaseTotals(5, 5, 150_000_000),
        "[2Jbackward": PhaseTotals(5, 5, 100_000_000),
    }
    assert not page.loaders[0].phases_on_device
    assert page.loaders[1].phases == {}
    assert not any(page.path.read_bytes()[PHASES_AT + PHASE_SLOT_SIZE :])


def test_of_many_names_the_first_eight_are_told() -> None:
    clock = StallClock(LoaderInfo("train"))
    with clock.step(3):  # type: ignore[arg-type] # what works without a page works with one
        pass
    for number in range(30):
        with clock.step(f"phase {number}"):
            pass
    clock.publish(0, 1, clock.now())
    assert list(only_loader().phases) == ["3", *(f"phase {number}" for number in range(7))]
