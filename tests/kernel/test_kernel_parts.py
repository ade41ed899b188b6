"""Parts of JPEGs: native code and twin write the same bytes, and a part decodes to the pixels of the whole."""

from __future__ import annotations

from io import BytesIO
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_damage import HEADER, SCAN, damage
from jpeg_damage import Parts as Taken
from kernel_images import TURNS, Batch, batch_of, exif, in_a_file, jpeg, native, needs_native, photo, save, worst
from numpy.typing import NDArray
from PIL import Image
from region_images import OWN, SAMPLING, Drawn, draw, encode, texture

from iofast.errors import OptionError
from iofast.kernel import DecodeOptions, Parts, Status, TranscodeRecipe, parts, twin
from iofast.kernel.contract import by_check

MODULES: dict[ModuleType | None, Any] = {twin: parts.part_batch}
if native is not None:
    from iofast.kernel import native_batch

    MODULES[native] = native_batch.part_batch

Boxes = list[list[int]]


def run(
    kernel: ModuleType, batch: Batch, boxes: Boxes, size: tuple[int, int], options: DecodeOptions | None = None
) -> tuple[NDArray[np.int32], NDArray[np.int32], list[bytes]]:
    """Status, table and bytes of each part."""
    source = batch.source
    places = np.concatenate(([0], np.cumsum(source.lengths.astype(np.int64) + 64)))
    made = Parts(np.full(int(places[-1]), 99, np.uint8), places, np.full((len(boxes), 9), 99, np.int32))
    status = np.full(len(boxes), -1, np.int32)
    context = kernel.Context(options or DecodeOptions())
    MODULES[kernel](context, source, np.array(boxes, np.int32), size, made, status, 0, len(boxes))
    ends = zip(places.tolist(), made.table[:, 0].tolist(), strict=False)
    return status, made.table, [made.out[at : at + length].tobytes() for at, length in ends]


def one(kernel: ModuleType, data: bytes, box: list[int], size: tuple[int, int], turn: int = 1, **options: Any) -> Any:
    status, table, made = run(kernel, batch_of([data], [turn]), [box], size, DecodeOptions(**options))
    return Status(int(status[0])), table[0].tolist(), made[0]


def whole(width: int, height: int) -> list[int]:
    return [0, 0, width, height, width, height, 0, 0]


def draw_box(rng: np.random.Generator, width: int, height: int) -> tuple[list[int], tuple[int, int]]:
    """A box within an upright image, resampled to another size, and a window (height, width) of that."""
    low = [int(rng.integers(side)) for side in (width, height)]
    high = [int(rng.integers(start, side)) + 1 for start, side in zip(low, (width, height), strict=True)]
    virtual = rng.integers(1, 90, 2).tolist()
    size = [int(rng.integers(1, side + 1)) for side in virtual]
    window = [int(rng.integers(0, side - own + 1)) for side, own in zip(virtual, size, strict=True)]
    return [*low, *high, *virtual, *window], (size[1], size[0])


def decoded(data: bytes) -> NDArray[np.uint8]:
    return np.asarray(Image.open(BytesIO(data)).convert("RGB"))


def check_part(drawn: bytes, box: list[int], size: tuple[int, int], turn: int, made: bytes, row: list[int]) -> None:
    """A part has the pixels that the box needs, and they equal those of the whole image."""
    _, width, height, x0, y0, x1, y1, left, top = row
    image = Image.open(BytesIO(made))
    assert image.size == (width, height)
    assert image.getexif().get(0x0112, 1) == 1
    piece = image.convert("RGB").crop((x0, y0, x1, y1))
    upright = Image.fromarray(decoded(drawn))
    if (way := dict(enumerate(TURNS)).get(turn)) is not None:
        piece, upright = piece.transpose(way), upright.transpose(way)
    reached = [needed(box, axis, size[1 - axis]) for axis in (0, 1)]
    inner = (*(low for low, _ in reached), *(high for _, high in reached))
    assert left <= inner[0] < inner[2] <= left + piece.width
    assert top <= inner[1] < inner[3] <= top + piece.height
    own = (inner[0] - left, inner[1] - top, inner[2] - left, inner[3] - top)
    assert worst(np.asarray(piece.crop(own)), np.asarray(upright.crop(inner))) == 0


def needed(box: list[int], axis: int, outputs: int) -> tuple[int, int]:
    """The pixels with a weight above zero, by brute force."""
    low, length, virtual, first = box[axis], box[2 + axis] - box[axis], box[4 + axis], box[6 + axis]
    centres = (np.arange(first, first + outputs) + 0.5) * length / virtual
    reach = max(length / virtual, 1)
    seen = np.abs(np.arange(length)[:, None] + 0.5 - centres) < reach - 1e-9
    rows = np.flatnonzero(seen.any(axis=1))
    return low + int(rows[0]), low + int(rows[-1]) + 1


@needs_native
@pytest.mark.parametrize("seed", range(4))
def test_native_and_twin_write_the_same(seed: int) -> None:
    """For whole and damaged images in any orientation."""
    rng, statuses = np.random.default_rng(seed), []
    for _ in range(120):
        drawn, turn = draw(rng), int(rng.integers(0, 10))
        upright = (drawn.height, drawn.width) if 5 <= turn <= 8 else (drawn.width, drawn.height)
        box, size = draw_box(rng, *upright)
        data = damage(drawn.data, rng) if rng.random() < 0.5 else drawn.data
        made = [one(kernel, data, box, size, turn) for kernel in (native, twin)]
        assert made[0] == made[1]
        statuses.append(made[0][0])
    assert min(statuses.count(each) for each in (Status.OK, Status.UNSUPPORTED)) > 10


@pytest.mark.parametrize("seed", range(2))
def test_a_part_has_the_pixels_of_the_whole(kernel: ModuleType, seed: int) -> None:
    rng, spliced = np.random.default_rng(50 + seed), 0
    for _ in range(60):
        drawn, turn = draw(rng), int(rng.integers(1, 9))
        upright = (drawn.height, drawn.width) if turn >= 5 else (drawn.width, drawn.height)
        box, size = draw_box(rng, *upright)
        status, row, made = one(kernel, drawn.data, box, size, turn)
        tiny = drawn.sampling in ("422", "420") and drawn.width <= 4
        assert (status == Status.OK) == (drawn.sampling in OWN and not tiny)
        if status == Status.OK:
            check_part(drawn.data, box, size, turn, made, row)
            spliced += drawn.restart > 0 and drawn.across % drawn.restart == 0 and len(made) < len(drawn.data) // 2
    assert spliced > 3


_side = st.integers(1, 70)


@needs_native
@settings(max_examples=150)
@given(
    size=st.tuples(_side, _side),
    sampling=st.sampled_from(list(SAMPLING)),
    restart=st.one_of(st.integers(0, 9), st.just(-1)),
    turn=st.integers(0, 9),
    seed=st.integers(0, 1 << 32),
    broken=st.booleans(),
)
def test_any_part_of_any_jpeg(
    size: tuple[int, int], sampling: str, restart: int, turn: int, seed: int, broken: bool
) -> None:
    """`restart` below zero: a row."""
    width, height = size
    restart = restart if restart >= 0 else Drawn(b"", sampling, width, height, 0).across
    rng = np.random.default_rng(seed)
    drawn = encode(texture(rng, width, height), sampling, restart)
    box, window = draw_box(rng, *((height, width) if 5 <= turn <= 8 else (width, height)))
    data = damage(drawn.data, rng) if broken else drawn.data
    status, row, made = one(native, data, box, window, turn)
    assert (status, row, made) == one(twin, data, box, window, turn)
    if status == Status.OK and not broken:
        check_part(drawn.data, box, window, turn, made, row)


@pytest.mark.parametrize("change", dict.fromkeys((*SCAN, *HEADER)), ids=lambda change: change.__name__)
def test_damaged_markers(kernel: ModuleType, change: Any) -> None:
    """The other rows succeed, and every part can be opened."""
    rng = np.random.default_rng(3)
    good = jpeg(photo(96, 64), restart_marker_blocks=2)
    images = []
    for _ in range(5):
        taken = Taken.of(good)
        change(taken, rng)
        images.append(taken.join())
    status, table, made = run(kernel, batch_of([*images, good]), [whole(96, 64)] * 6, (64, 96))
    assert status[-1] == Status.OK
    for row, (state, about, data) in enumerate(zip(status, table, made, strict=True)):
        assert state in (Status.OK, Status.UNSUPPORTED), row
        assert about.any() == (state == Status.OK)
        if state == Status.OK:
            assert Image.open(BytesIO(data)).size == tuple(about[1:3])


def test_images_without_a_part(kernel: ModuleType) -> None:
    good = jpeg(photo(40, 30))
    images = [
        jpeg(photo(40, 30), progressive=True),
        jpeg(photo(40, 30), "CMYK"),
        save(Image.fromarray(photo(40, 30)), "PNG"),
        b"",
        b"\xff\xd8",
        good[:-40],
        good.replace(b"\xff\0", b"\xff\xff\0"),  # fill bytes
    ]
    status, table, _ = run(kernel, batch_of(images), [whole(40, 30)] * 7, (30, 40))
    assert status.tolist() == [Status.UNSUPPORTED] * 7
    assert not table.any()
    assert one(kernel, good, whole(41, 30), (30, 41))[0] == Status.UNSUPPORTED  # the box lies outside
    assert one(kernel, good, whole(40, 30), (30, 40), max_pixels=1199)[0] == Status.UNSUPPORTED
    assert one(kernel, good, whole(40, 30), (30, 40), max_bytes=100)[0] == Status.LIMIT


def test_raw_pixels_and_checksums(kernel: ModuleType) -> None:
    pixels = photo(40, 30)
    images = [jpeg(pixels), jpeg(pixels), pixels.tobytes()]
    batch = batch_of(images, checked=True)
    raw = np.array([[0, 0, 0], [0, 0, 0], [1, 40, 30]], np.int32)
    crcs = batch.source.crcs.copy()
    crcs[1] += 1
    source = batch.source._replace(crcs=crcs, indexed=raw)
    status, _, _ = run(kernel, batch._replace(source=source), [whole(40, 30)] * 3, (30, 40))
    assert status.tolist() == [Status.OK, Status.CHECKSUM, Status.UNSUPPORTED]
    mixed = source._replace(crcs=np.where(np.arange(3) == 1, -1, batch.source.crcs.astype(np.int64)))
    status, _, _ = run(kernel, batch._replace(source=mixed), [whole(40, 30)] * 3, (30, 40))
    assert status.tolist() == [Status.OK, Status.OK, Status.UNSUPPORTED]


@given(st.lists(st.integers(-1, 1), min_size=1, max_size=9), st.integers(0, 8), st.integers(0, 8))
def test_runs_of_rows_with_and_without_checksum(crcs: list[int], start: int, length: int) -> None:
    start = min(start, len(crcs))
    stop = min(start + length, len(crcs))
    source = batch_of([b"x"] * len(crcs)).source._replace(crcs=np.array(crcs, np.int64))
    runs = [(part.crcs, range(*rows)) for part, *rows in by_check(source, start, stop)]
    assert [row for _, rows in runs for row in rows] == list(range(start, stop))
    for plain, rows in runs:
        assert [plain is None] * len(rows) == [crcs[row] < 0 for row in rows]
        assert plain is None or [int(plain[row]) for row in rows] == [crcs[row] for row in rows]


def test_no_part_of_an_image_that_contradicts_the_index(kernel: ModuleType) -> None:
    data = [jpeg(photo(40, 30)), jpeg(photo(40, 30), exif=exif(3))]
    batch = batch_of([data[0], data[0], data[0], data[1], data[1]], [1, 1, 3, 3, 0])
    indexed = np.array([(0, 40, 30), (0, 40, 31), (0, 40, 30), (0, 40, 30), (0, 40, 30)], np.int32)
    batch = batch._replace(source=batch.source._replace(indexed=indexed))
    status = run(kernel, batch, [whole(40, 30)] * 5, (30, 40))[0]
    changed, good = Status.UNSUPPORTED, Status.OK
    assert status.tolist() == [good, changed, changed, good, good]


def test_from_a_file(kernel: ModuleType) -> None:
    batch = batch_of([jpeg(photo(90 + i, 70)) for i in range(4)])
    source, _fd = in_a_file(batch)
    boxes = [[10, 10, 60, 60, 32, 32, 0, 0]] * 4
    expected = run(kernel, batch, boxes, (32, 32))
    found = run(kernel, batch._replace(source=source), boxes, (32, 32))
    assert found[2] == expected[2]
    assert np.array_equal(found[1], expected[1])
    short = source._replace(offsets=source.offsets + np.uint64(100_000))
    assert run(kernel, batch._replace(source=short), boxes, (32, 32))[0].tolist() == [Status.SHORT] * 4


def test_parts_are_small(kernel: ModuleType) -> None:
    """EXIF, thumbnails and comments are dropped, and most segments of a packed photograph."""
    plain = jpeg(photo(64, 48), exif=exif(6) + b"\0" * 9000, comment=b"long " * 500)
    status, row, made = one(kernel, plain, whole(48, 64), (64, 48), 6)
    assert (status, row[1:]) == (Status.OK, [64, 48, 0, 0, 64, 48, 0, 0])
    assert len(made) < len(plain) - 11_000
    assert np.array_equal(decoded(made), decoded(plain))
    if native:
        data = native.transcode(jpeg(photo(640, 480)), TranscodeRecipe(restart="auto")).data
        _, row, made = one(kernel, data, [100, 100, 260, 260, 224, 224, 0, 0], (224, 224))
        assert row[1] * row[2] < 1.8 * 160 * 160
        assert len(made) < len(data) / 5


def test_too_little_room_and_arrays_that_do_not_fit(kernel: ModuleType) -> None:
    call, data = MODULES[kernel], jpeg(photo(40, 30))
    source, _alive = batch_of([data, data])
    boxes, context = np.array([whole(40, 30)] * 2, np.int32), kernel.Context(DecodeOptions())
    out, table, status = np.zeros(2 * len(data) + 200, np.uint8), np.zeros((2, 9), np.int32), np.zeros(2, np.int32)
    tight = np.array([0, 200, len(out)], np.int64)

    def part(places: Any = tight, columns: int = 9, stop: int = 2) -> None:
        parts = Parts(out, np.array(places, np.int64), table[:, :columns])
        call(context, source, boxes, (30, 40), parts, status, 0, stop)

    part()
    assert status.tolist() == [Status.MEMORY, Status.OK]
    assert not out[:200].any()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"places": [0, 300, 200]}, "places must rise"),
        ({"places": [0, 100, len(out) + 1]}, "places must rise"),
        ({"places": [-1, 100, 200]}, "places must rise"),
        ({"places": [0, 100]}, "part_batch: expected 2 rows"),
        ({"stop": 3}, "rows 0 to 3"),
        ({"columns": 8}, "part_batch: expected 2 rows"),
    ]
    for change, reason in wrong:
        with pytest.raises(OptionError, match=reason):
            part(**change)
    context.close()
    with pytest.raises(OptionError, match="closed"):
        part()
