"""`exact`: the pixels of Pillow's crop and resize, to the last bit, on every instruction set."""

from collections.abc import Sequence
from contextlib import closing
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kernel_images import KINDS, Pixels, View, batch_of, decode_views, jpeg, photo, raw_batch, upright
from PIL import Image

from iofast.errors import OptionError
from iofast.kernel import native
from iofast.kernel.contract import ALIASED, ALL_FILTERS, DecodeOptions, Finish, Payloads, Status
from iofast.work import no_work

FILTERS = tuple(name for name in ALL_FILTERS if name != ALIASED)
SIZES = ((500, 375), (61, 47), (256, 320), (900, 80), (33, 700))


@cache
def encoded(number: int, kind: str = "420") -> bytes:
    return KINDS[kind](photo(*SIZES[number], number))


@st.composite
def interval(draw: st.DrawFn, size: int) -> tuple[int, int]:
    low = draw(st.integers(0, size - 1))
    return low, draw(st.integers(low + 1, size))


@st.composite
def geometries(draw: st.DrawFn) -> tuple[int, tuple[int, ...], tuple[int, int], tuple[float, ...] | None]:
    """An image's number, a region, a size, and a part of the region in fractions of pixels, or None."""
    number = draw(st.integers(0, len(SIZES) - 1))
    across, down = (draw(interval(size)) for size in SIZES[number])
    lengths = across[1] - across[0], down[1] - down[0]
    size = tuple(draw(st.one_of(st.integers(1, 40), st.integers(1, 400), st.just(length))) for length in lengths)
    region = (across[0], down[0], across[1], down[1])
    if draw(st.booleans()):
        return number, region, (size[0], size[1]), None
    ends = [sorted(draw(st.tuples(st.floats(0, n, width=32), st.floats(0, n, width=32)))) for n in lengths]
    assume(all(low < high for low, high in ends))
    return number, region, (size[0], size[1]), (ends[0][0], ends[1][0], ends[0][1], ends[1][1])


def decoded(
    source: Payloads,
    box: tuple[int, ...],
    size: tuple[int, int],
    filter: str,
    flip: int = 0,
    span: tuple[float, ...] | None = None,
) -> Pixels:
    """The window `size` (width, height) of one image."""
    options, spans = DecodeOptions(filter=filter, exact=True), None if span is None else [span]
    status, out = decode_views(source, [View(box, size, flip)], options, spans)  # type: ignore[arg-type]
    assert status == [Status.OK]
    return out[0]


@given(geometries(), st.sampled_from(FILTERS), st.booleans(), st.sampled_from(["420", "gray", "444"]))
def test_a_crop_is_pillows_to_the_last_bit(
    geometry: tuple[int, tuple[int, ...], tuple[int, int], tuple[float, ...] | None],
    filter: str,
    flip: bool,
    kind: str,
) -> None:
    number, region, size, span = geometry
    source, _alive = batch_of([encoded(number, kind)])
    made = decoded(source, (*region, *size, 0, 0), size, filter, flip, span)
    image = upright(encoded(number, kind)).crop(region)  # type: ignore[arg-type]
    wanted = np.asarray(image.resize(size, Image.Resampling[filter.upper()], span))
    np.testing.assert_array_equal(made, wanted[:, ::-1] if flip else wanted)


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_window_of_an_oriented_image_is_pillows(filter: str, orientation: int) -> None:
    data = encoded(0)
    image = upright(data, orientation)
    source, _alive = batch_of([data], [orientation])
    for size in ((190, 90), (170, 290), (400, 360)):
        region, window = (30, 21, 330, 350), (11, 7)
        made = decoded(source, (*region, *size, *window), (150, 80), filter)
        whole = image.crop(region).resize(size, Image.Resampling[filter.upper()])
        np.testing.assert_array_equal(made, np.asarray(whole.crop((11, 7, 161, 87))))


def check(data: bytes, box: tuple[int, int, int, int], sizes: Sequence[tuple[int, int]], filter: str) -> None:
    image, (source, _alive) = upright(data), batch_of([data])
    for size in sizes:
        made = decoded(source, (*box, *size, 0, 0), size, filter)
        wanted = image.crop(box).resize(size, Image.Resampling[filter.upper()])
        np.testing.assert_array_equal(made, np.asarray(wanted), err_msg=str(size))


@pytest.mark.parametrize("filter", FILTERS)
def test_large_reductions_are_pillows(filter: str) -> None:
    check(jpeg(photo(1500, 1100)), (0, 0, 1500, 1100), ((3, 2), (1, 1), (700, 1), (1, 700), (40, 30)), filter)


def test_levels_at_both_ends_are_clipped_like_pillows() -> None:
    """Rows and columns of black and white: filters with negative lobes leave the range in both passes."""
    rng = np.random.default_rng(1)
    pixels = np.repeat((rng.integers(0, 2, (120, 90, 1)) * 255).astype(np.uint8), 3, 2)
    payload, _alive = raw_batch([pixels.tobytes()], [(90, 120)])
    for filter in FILTERS:
        for size in ((180, 240), (97, 131), (89, 50), (45, 60), (45, 200)):
            made = decoded(payload, (0, 0, 90, 120, *size, 0, 0), size, filter)
            wanted = Image.fromarray(pixels).resize(size, Image.Resampling[filter.upper()])
            np.testing.assert_array_equal(made, np.asarray(wanted), err_msg=f"{filter} {size}")


def test_steps_and_types_follow_as_without_it() -> None:
    source, _alive = batch_of([encoded(0)] * 2)
    boxes = np.array([[20, 10, 320, 260, 96, 80, 0, 0]] * 2, np.int32)
    scale = np.array([[1 / 255] * 3, [-0.5] * 3], np.float32)
    finish = Finish(no_work(2), scale, np.zeros((0, 3), np.float32), "float32")
    status, made = np.zeros(2, np.int32), np.empty((2, 80, 96, 3), np.float32)
    with closing(native.Context(DecodeOptions(exact=True))) as context:
        native.decode_batch(context, source, boxes, np.array([0, 1], np.uint8), made, status, 0, 2, finish)
    assert status.tolist() == [Status.OK] * 2
    wanted = np.asarray(upright(encoded(0)).crop((20, 10, 320, 260)).resize((96, 80), Image.Resampling.BILINEAR))
    wanted = (wanted * scale[0] + scale[1]).astype(np.float32)
    np.testing.assert_allclose(made[0], wanted, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(made[1], made[0][:, ::-1])


def with_spans(spans: object, exact: bool = True) -> tuple[list[int], Pixels]:
    source, _alive = batch_of([encoded(0)])
    return decode_views(source, [View((5, 5, 55, 45, 8, 8, 0, 0), (8, 8))], DecodeOptions(exact=exact), spans)


@pytest.mark.parametrize(
    "span", [(0, 0, 50.5, 40), (-0.1, 0, 50, 40), (9, 0, 9, 40), (0, 5, 50, 4), (0, 0, 50, np.nan)]
)
def test_a_span_outside_its_region_is_an_error(span: tuple[float, ...]) -> None:
    status, out = with_spans([span])
    assert status == [Status.BOX]
    assert not out.any()


@pytest.mark.parametrize(("exact", "shape"), [(False, (1, 4)), (True, (2, 4)), (True, (1, 3))])
def test_spans_need_exact_and_a_row_each(exact: bool, shape: tuple[int, int]) -> None:
    with pytest.raises(OptionError, match=r"spans must have the shape \(1, 4\), in a context with exact=True, found"):
        with_spans(np.ones(shape), exact)


@pytest.mark.parametrize("simd", ["scalar", "avx2"])
@pytest.mark.parametrize("filter", FILTERS)
def test_other_instruction_sets_give_the_same(filter: str, simd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOFAST_SIMD", simd)  # read when a context is made
    check(encoded(0), (7, 5, 497, 371), ((224, 224), (130, 90), (20, 30), (500, 300), (400, 40)), filter)
