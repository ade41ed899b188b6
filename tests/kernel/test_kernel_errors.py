"""The status of rows that cannot be decoded, and their neighbours, which must not be affected."""

import os
import re
import resource
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from at_once import in_child
from hypothesis import given
from hypothesis import strategies as st
from kernel_images import KINDS, View, batch_of, decode_view, decode_views, exif, jpeg, photo, save, segment, with_size
from PIL import Image

from iofast import kernel
from iofast.errors import DecodeError, OptionError
from iofast.kernel.contract import MESSAGES, DecodeOptions, Kind, Payloads, Status

WIDTH, HEIGHT = 160, 120
GOOD, PROGRESSIVE = jpeg(photo(WIDTH, HEIGHT)), KINDS["progressive"](photo(WIDTH, HEIGHT))
PNG = save(Image.fromarray(photo(WIDTH, HEIGHT)), "PNG")
WHOLE = View((0, 0, WIDTH, HEIGHT, 48, 40, 0, 0), (48, 40))


def _broken_table() -> bytes:
    """A Huffman table with too many codes."""
    at = segment(GOOD, 0xC4) + 5
    return GOOD[:at] + b"\xff" * 16 + GOOD[at + 16 :]


class Case(NamedTuple):
    status: Status
    data: bytes = GOOD
    view: View = WHOLE
    options: DecodeOptions = DecodeOptions()
    indexed: tuple[int, int, int] = (Kind.ENCODED, 0, 0)  # the size of raw pixels


def _boxed(*box: int) -> Case:
    return Case(Status.BOX, view=View(box, (48, 40)))  # type: ignore[arg-type]


def _raw(status: Status, length: int, *size: int, kind: int = Kind.RGB) -> Case:
    view = View((0, 0, 30, 28, 48, 40, 0, 0), (48, 40))
    return Case(status, bytes(length), view, indexed=(kind, *size))  # type: ignore[arg-type]


CASES = {
    "good": Case(Status.OK),
    "corrupt": Case(Status.CORRUPT, _broken_table()),
    "cut in the pixels": Case(Status.TRUNCATED, GOOD[: len(GOOD) // 2]),
    "without its end marker": Case(Status.TRUNCATED, GOOD[:-2]),
    "zeros for its end marker": Case(Status.TRUNCATED, GOOD[:-2] + bytes(50)),
    "progressive, cut": Case(Status.TRUNCATED, PROGRESSIVE[:-400]),
    "png, cut": Case(Status.TRUNCATED, PNG[:3000]),
    "guessed": Case(Status.OK, GOOD[: len(GOOD) // 2], options=DecodeOptions(strict=False)),
    "progressive, guessed": Case(Status.OK, PROGRESSIVE[:-400], options=DecodeOptions(strict=False)),
    "too many pixels": Case(Status.LIMIT, options=DecodeOptions(max_pixels=WIDTH * HEIGHT - 1)),
    "just enough pixels": Case(Status.OK, options=DecodeOptions(max_pixels=WIDTH * HEIGHT)),
    "a bomb": Case(Status.LIMIT, with_size(GOOD, 65_500, 65_500)),
    "png bomb": Case(Status.LIMIT, PNG, options=DecodeOptions(max_pixels=WIDTH * HEIGHT - 1)),
    "too many bytes": Case(Status.LIMIT, options=DecodeOptions(max_bytes=len(GOOD) - 1)),
    "just enough bytes": Case(Status.OK, options=DecodeOptions(max_bytes=len(GOOD))),
    "no image": Case(Status.UNSUPPORTED, b"nothing that anyone would call an image"),
    "empty": Case(Status.EMPTY, b""),
    "a program": Case(Status.UNSUPPORTED, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"),
    "too wide": _boxed(0, 0, WIDTH + 1, HEIGHT, 48, 40, 0, 0),
    "too high": _boxed(0, 0, WIDTH, HEIGHT + 1, 48, 40, 0, 0),
    "left": _boxed(-1, 0, WIDTH, HEIGHT, 48, 40, 0, 0),
    "above": _boxed(0, -5, WIDTH, HEIGHT, 48, 40, 0, 0),
    "empty region": _boxed(10, 10, 10, 20, 48, 40, 0, 0),
    "backwards": _boxed(0, 50, WIDTH, 20, 48, 40, 0, 0),
    "no virtual width": _boxed(0, 0, WIDTH, HEIGHT, 0, 40, 0, 0),
    "negative virtual height": _boxed(0, 0, WIDTH, HEIGHT, 48, -40, 0, 0),
    "window off the right": _boxed(0, 0, WIDTH, HEIGHT, 60, 50, 13, 0),
    "window off the bottom": _boxed(0, 0, WIDTH, HEIGHT, 60, 50, 0, 11),
    "window off the left": _boxed(0, 0, WIDTH, HEIGHT, 60, 50, -1, 0),
    "window past any number": _boxed(0, 0, WIDTH, HEIGHT, 2**31 - 1, 2**31 - 1, 2**31 - 10, 0),
    "virtual image too small": _boxed(0, 0, WIDTH, HEIGHT, 47, 40, 0, 0),
    "raw": _raw(Status.OK, 3600, 40, 30),
    "raw, a byte less": _raw(Status.TRUNCATED, 3599, 40, 30),
    "raw, a byte more": _raw(Status.CORRUPT, 3601, 40, 30),
    "raw, nothing": _raw(Status.TRUNCATED, 0, 40, 30),
    "raw, no width": _raw(Status.CORRUPT, 0, 0, 30),
    "raw, less than no height": _raw(Status.CORRUPT, 3600, 40, -30),
    "raw, a size that wraps round": _raw(Status.LIMIT, 3600, 2**31 - 1, 2**31 - 1),
    "raw, too many pixels": _raw(Status.LIMIT, 3600, 2**14 + 1, 2**14),
    "raw, no such kind": _raw(Status.UNSUPPORTED, 3600, 40, 30, kind=3),
    "raw, less than no kind": _raw(Status.UNSUPPORTED, 3600, 40, 30, kind=-1),
    "raw, a box outside": _raw(Status.BOX, 1200, 20, 20),
}


@pytest.mark.parametrize("checked", [False, True], ids=["", "checked"])
@pytest.mark.parametrize("name", CASES)
def test_each_row_has_its_own_status(name: str, checked: bool) -> None:
    """The row is between good ones, in a batch of which only rows 1 to 3 are decoded."""
    case = CASES[name]
    good = decode_view(GOOD, WHOLE, case.options)
    source, _alive = batch_of([GOOD, GOOD, case.data, GOOD, GOOD], checked=checked)
    if case.indexed[0]:
        source = source._replace(indexed=np.array([(0, 0, 0)] * 2 + [case.indexed] + [(0, 0, 0)] * 2, np.int32))
    boxes = np.array([WHOLE.box, WHOLE.box, case.view.box, WHOLE.box, WHOLE.box], np.int32)
    out, status = np.full((5, 40, 48, 3), 99, np.uint8), np.full(5, -7, np.int32)
    kernel.decode_batch(kernel.Context(case.options), source, boxes, np.zeros(5, np.uint8), out, status, 1, 4)
    assert status.tolist() == [-7, good[0], case.status, good[0], -7]
    assert (out[[0, 4]] == 99).all()
    np.testing.assert_array_equal(out[[1, 3]], np.stack([good[1]] * 2))
    assert not case.status or not out[2].any()


@pytest.mark.parametrize("kind", ["420", "gray", "progressive", "restart blocks"])
def test_an_image_cut_anywhere_is_not_decoded(kind: str) -> None:
    data = KINDS[kind](photo(40, 30))
    view = View((0, 0, 40, 30, 20, 15, 0, 0), (20, 15))
    for end in [*range(3, len(data), 5), len(data) - 2, len(data) - 1]:  # the last two: only the end marker is missing
        status, pixels = decode_view(data[:end], view)
        assert status in (Status.TRUNCATED, Status.CORRUPT), end
        assert not pixels.any()


TURNED_GOOD = jpeg(photo(WIDTH, HEIGHT), exif=exif(6))
CHANGES = {
    "as indexed": (GOOD, (WIDTH, HEIGHT), 1, Status.OK),
    "not compared": (GOOD, (0, HEIGHT), 1, Status.OK),
    "narrower": (GOOD, (WIDTH + 1, HEIGHT), 1, Status.CHANGED),
    "higher": (GOOD, (WIDTH, HEIGHT - 1), 1, Status.CHANGED),
    "turned by a tag": (GOOD, (HEIGHT, WIDTH), 6, Status.CHANGED),
    "upside down": (GOOD, (WIDTH, HEIGHT), 3, Status.CHANGED),
    "tagged": (TURNED_GOOD, (HEIGHT, WIDTH), 6, Status.OK),
    "tagged since": (TURNED_GOOD, (WIDTH, HEIGHT), 1, Status.CHANGED),
    "wanted as stored": (TURNED_GOOD, (WIDTH, HEIGHT), 0, Status.OK),
    "png": (PNG, (WIDTH, HEIGHT), 1, Status.OK),
    "another png": (PNG, (WIDTH, 1), 1, Status.CHANGED),
    "no image any more": (b"nothing", (WIDTH, HEIGHT), 1, Status.UNSUPPORTED),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("outside", [False, True], ids=["", "box outside"])
def test_a_header_that_contradicts_the_index(name: str, outside: bool) -> None:
    data, size, orientation, expected = CHANGES[name]
    if outside and expected == Status.OK:
        expected = Status.BOX
    source, _alive = batch_of([GOOD, data], [1, orientation])
    source = source._replace(indexed=np.array([(0, WIDTH, HEIGHT), (0, *size)], np.int32))
    region = (0, 0, 300, 300) if outside else (0, 0, 100, 100)
    status, out = decode_views(source, [WHOLE, View((*region, 48, 40, 0, 0), (48, 40))])
    assert status == [Status.OK, expected]
    assert bool(out[1].any()) == (expected == Status.OK)
    boxes, found = np.array([WHOLE.box, (*region, 48, 40, 0, 0)], np.int32), np.full(2, -7, np.int32)
    kernel.decode_each(kernel.Context(DecodeOptions()), source, boxes, np.zeros(2, np.uint8), list(out), found)
    assert found.tolist() == status


UNSUPPORTED = [
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"8BPS\0\1", "Photoshop (PSD)"),
    (b"  <SVG xmlns=''>", "SVG"),
    (b"\xef\xbb\xbf<?xml version='1.0'?><svg>", "SVG"),
    (b"\0" * 128 + b"DICM", "DICOM"),
    (b"\0\0\0\x18ftypcrx ", "camera raw"),
]


@pytest.mark.parametrize(("start", "name"), UNSUPPORTED)
def test_unsupported_formats_are_named(start: bytes, name: str) -> None:
    reason = re.escape(f"not an image that can be decoded here ({name}: not supported; convert it first)")
    with pytest.raises(DecodeError, match=f"^{reason}$"):
        kernel.decode(start + bytes(100))


def test_payloads_from_files(tmp_path: Path) -> None:
    path = tmp_path / "payloads"
    path.write_bytes(b"before" + GOOD + b"after")
    with path.open("rb") as file, (tmp_path / "closed").open("wb") as unreadable:
        fd, folder = file.fileno(), os.open(tmp_path, os.O_RDONLY)
        rows = [
            (fd, 6, len(GOOD), 0, Status.OK),
            (fd, 6, len(GOOD), 1, Status.CHECKSUM),
            (fd, 5, len(GOOD), 0, Status.CHECKSUM),
            (fd, 6, len(GOOD) + 6, 0, Status.SHORT),
            (fd, 10**9, 10, 0, Status.SHORT),
            (fd, 2**64 - 5, 10, 0, None),  # no such place: either error will do
            (9999, 0, 10, 0, Status.READ),
            (folder, 0, 10, 0, Status.READ),
            (unreadable.fileno(), 0, 10, 0, Status.READ),
            (fd, 6, 2**40, 0, Status.LIMIT),
            (fd, 6, len(GOOD), 0, Status.OK),
        ]
        crc = kernel.crc32c(GOOD)
        source = Payloads(
            np.array([row[0] for row in rows], np.int32),
            np.array([row[1] for row in rows], np.uint64),
            np.array([row[2] for row in rows], np.uint64),
            np.array([crc ^ row[3] for row in rows], np.uint32),
            np.ones(len(rows), np.uint8),
            None,
        )
        status, out = decode_views(source, [WHOLE] * len(rows))
        os.close(folder)
    for (*_, wanted), found, pixels in zip(rows, status, out, strict=True):
        assert found in ((Status.READ, Status.SHORT) if wanted is None else (wanted,))
        assert pixels.any() == (found == Status.OK)


def test_out_of_memory() -> None:
    """14 GB of pixels where 256 MB of address space are left."""
    data, view = with_size(GOOD, 60_000, 60_000), View((0, 0, 60_000, 60_000, 48, 40, 0, 0), (48, 40))

    def is_refused() -> bool:
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (256 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        return decode_view(data, view, DecodeOptions(max_pixels=1 << 32))[0] == Status.MEMORY

    assert in_child(is_refused) == 0


def test_decode_raises_for_each_status() -> None:
    assert set(MESSAGES) == set(Status)
    for name, case in CASES.items():
        if case.status in (Status.OK, Status.BOX) or case.options != DecodeOptions() or case.indexed[0]:
            continue
        expected = MESSAGES[case.status].replace("pixels or bytes", "pixels")  # `beyond` says on which
        with pytest.raises(DecodeError, match=expected) as caught:
            kernel.decode(case.data)
        assert "\n" not in str(caught.value), name


def test_arrays_that_do_not_fit_are_refused() -> None:
    source, _alive = batch_of([GOOD] * 2)
    boxes, flips = np.array([WHOLE.box] * 2, np.int32), np.zeros(2, np.uint8)
    out, status = np.zeros((2, 40, 48, 3), np.uint8), np.zeros(2, np.int32)
    context = kernel.Context(DecodeOptions())
    frozen = out.copy()
    frozen.flags.writeable = False
    good = {"source": source, "boxes": boxes, "flips": flips, "out": out, "status": status, "start": 0, "stop": 2}
    for wrong in (
        {"stop": 3},
        {"start": -1},
        {"start": 2, "stop": 1},
        {"boxes": boxes[:1]},
        {"boxes": boxes[:, :4]},
        {"flips": flips[:1]},
        {"out": out[..., :2]},
        {"out": out[0]},
        {"out": out.astype(np.float32)},
        {"out": frozen},
        {"status": status[:1]},
        {"source": source._replace(fds=source.fds[:1])},
        {"source": source._replace(orientations=source.orientations[:1])},
        {"source": source._replace(indexed=np.zeros((1, 3), np.int32))},
        {"source": source._replace(indexed=np.zeros((2, 2), np.int32))},
    ):
        with pytest.raises((OptionError, ValueError, TypeError, BufferError)):
            kernel.decode_batch(context, **good | wrong)
    assert not out.any()
    context.close()
    context.close()
    with pytest.raises(OptionError, match="closed"):
        kernel.decode_batch(context, source, boxes, flips, out, status, 0, 2)
    with pytest.raises(OptionError, match=r"^decoder must be segments, splice, libjpeg or None, found 'rows'$"):
        kernel.Context(DecodeOptions(), decoder="rows")


@given(data=st.data())
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_damaged_payloads_harm_no_neighbour(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    damaged = bytearray(KINDS[kind](photo(70, 50)))
    for _ in range(data.draw(st.integers(1, 12))):
        damaged[data.draw(st.integers(2, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(len(damaged) // 2, len(damaged))) :]
    options = DecodeOptions(strict=data.draw(st.booleans()), max_pixels=1 << 22)
    view = View((5, 5, 65, 45, 32, 32, 0, 0), (32, 32))
    good = KINDS["420"](photo(70, 50))
    source, _alive = batch_of([good, bytes(damaged), good])
    status, out = decode_views(source, [view] * 3, options)
    alone = decode_view(good, view, options)[1]
    assert status[0] == status[2] == Status.OK
    np.testing.assert_array_equal(out[[0, 2]], np.stack([alone, alone]))
    assert status[1] in set(Status)
    if status[1]:
        assert not out[1].any()
