"""Damaged JPEGs on every decoding path: the same error, or the right pixels beside the damage."""

from collections.abc import Callable

import numpy as np
import pytest
from jpeg_damage import HEADER, SCAN, Parts, Rng, damage, fill_bytes, garbage_before_marker
from kernel_images import Pixels, upright
from region_images import OWN, ROUTES, Box, Decoder, Drawn, claimed_size, cut, draw_boxes, encode, texture

from iofast.errors import DecodeError
from iofast.kernel import native
from iofast.kernel.contract import DecodeOptions, Status

MAX_PIXELS = 1 << 20
IMAGES = 8  # of each damage
FEW = (*ROUTES[:3], ("splice", "avx2"), ("libjpeg", "avx2"))
LIBJPEG = FEW[-1]


@pytest.fixture(scope="module")
def strict() -> Decoder:
    return Decoder(DecodeOptions(max_pixels=MAX_PIXELS), FEW)


@pytest.fixture(scope="module")
def lenient() -> Decoder:
    return Decoder(DecodeOptions(strict=False, max_pixels=MAX_PIXELS), FEW)


def small(rng: Rng) -> Drawn:
    """An image of a few restart segments, or without markers."""
    width, height = (int(v) for v in rng.integers(20, 90, 2))
    sampling, restart = str(rng.choice(OWN)), int(rng.choice((0, 1, 1, 2, 3, 5, 8)))
    return encode(texture(rng, width, height), sampling, restart, int(rng.choice((40, 90))), bool(rng.integers(2)))


def test_check_agrees_with_decode() -> None:
    """`check` and `decode` raise the same error, or none, for damaged and whole files with and without markers."""
    rng = np.random.default_rng(5)
    seen = set()
    for number in range(150):
        width, height = (int(v) for v in rng.integers(17, 120, 2))
        restart = int(rng.choice((0, 0, 0, 3)))
        drawn = encode(texture(rng, width, height), str(rng.choice(OWN)), restart, 80, bool(number % 3 == 0))
        data = damage(drawn.data, rng) if number % 4 else drawn.data
        checked = _error(lambda data: native.check(data, 1, 1 << 28, 1 << 31), data)
        decoded = _error(native.decode, data)
        assert checked == decoded
        seen.add(checked)
    assert len(seen) > 3


def _error(function: Callable[[bytes], object], data: bytes) -> str | None:
    try:
        function(data)
    except DecodeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("change", dict.fromkeys((*SCAN, *HEADER)), ids=lambda change: change.__name__)
def test_what_is_passed_has_libjpegs_pixels(strict: Decoder, lenient: Decoder, change: Callable[..., None]) -> None:
    """A region that is decoded in strict mode is that of the whole file by libjpeg, which goes on behind damage."""
    rng, whole_files = np.random.default_rng(3), 0
    for _ in range(IMAGES):
        drawn = small(rng)
        parts = Parts.of(drawn.data)
        change(parts, rng)
        data = parts.join()
        same_size = claimed_size(data, MAX_PIXELS) == (drawn.width, drawn.height)
        boxes = draw_boxes(rng, drawn, 5) if same_size else []
        guessed = lenient.regions(LIBJPEG, data, boxes[:1])[1]
        for route in strict.contexts:
            statuses, pictures, _ = strict.regions(route, data, boxes)
            for box, status, pixels in zip(boxes, statuses, pictures, strict=True):
                wanted = 0 * pixels if status else cut(guessed[0], box)
                assert np.array_equal(pixels, wanted), (route, drawn[1:], box)
                whole_files += status == 0 and box == boxes[0]
        agree(strict, data)
        agree(lenient, data)
    assert change not in (fill_bytes, garbage_before_marker) or whole_files == IMAGES * len(FEW)


def agree(decoder: Decoder, data: bytes) -> None:
    """Every path has the status and pixels of libjpeg for the whole image."""
    box = Box(0, 0, *claimed_size(data, MAX_PIXELS))
    (wanted,), (right,), _ = decoder.regions(LIBJPEG, data, [box])
    for route in decoder.contexts:
        (status,), (pixels,), _ = decoder.regions(route, data, [box])
        assert status == wanted, (route, Status(status), Status(wanted))
        assert np.array_equal(pixels, right), route


@pytest.mark.parametrize("restart", [0, 6])
@pytest.mark.parametrize("fill", [b"\xff", b"\xff\xff\xff"], ids=["one", "three"])
def test_fill_bytes_before_a_stuffed_zero(strict: Decoder, lenient: Decoder, restart: int, fill: bytes) -> None:
    """No encoder writes them, and the two loops of libjpeg-turbo read them differently."""
    drawn = encode(texture(np.random.default_rng(1), 200, 150), "420", restart, 90)
    stuffed = [i for i in range(len(drawn.data) - 1) if drawn.data[i : i + 2] == b"\xff\0"]
    for i in stuffed[len(stuffed) // 9 :: len(stuffed) // 9]:
        data = drawn.data[:i] + fill + drawn.data[i:]
        agree(strict, data)
        agree(lenient, data)


def test_damage_outside_a_region_is_ignored_but_wrong_markers_are_not(strict: Decoder) -> None:
    """Only the region is read, but the number of segments and the end of the image are always checked."""
    drawn = encode(texture(np.random.default_rng(1), 128, 96), "420", 8)
    right, top = np.asarray(upright(drawn.data)), Box(0, 0, 128, 14)

    def decoded(data: bytes) -> list[tuple[int, Pixels]]:
        found = [strict.regions(route, data, [top]) for route in (("own", "avx2"), ("splice", "avx2"))]
        return [(statuses[0], pictures[0]) for statuses, pictures, _ in found]

    parts = Parts.of(drawn.data)
    parts.scan[4] = b"\x12\x34"
    for status, pixels in decoded(parts.join()):
        assert status == Status.OK
        np.testing.assert_array_equal(pixels, cut(right, top))
    for i, end in ((4, b"\xff\xd1"), (4, b""), (5, b""), (5, b"\xff")):
        parts = Parts.of(drawn.data)
        parts.ends[i] = end
        assert all(status in (Status.CORRUPT, Status.TRUNCATED) for status, _ in decoded(parts.join())), (i, end)


@pytest.mark.parametrize("sampling", ["420", "440"])
@pytest.mark.parametrize("restart", [0, 6])
def test_the_end_marker_of_a_thumbnail_does_not_count(strict: Decoder, sampling: str, restart: int) -> None:
    """The search once included the header, so a truncated photograph with a thumbnail was accepted."""
    drawn = encode(texture(np.random.default_rng(2), 96, 96), sampling, restart)
    parts = Parts.of(drawn.data)
    parts.header.insert(1, (0xE1, b"Exif\0\0 \xff\xd8 thumbnail \xff\xd9"))
    whole, top = parts.join(), Box(0, 0, 30, 4)
    for route in FEW:
        assert strict.regions(route, whole, [top])[0] == [Status.OK]
        for end in (len(whole) - 2, len(whole) * 4 // 5):
            assert strict.regions(route, whole[:end], [top])[0][0] in (Status.CORRUPT, Status.TRUNCATED), route


@pytest.mark.parametrize("route", FEW, ids="-".join)
def test_with_a_checksum_every_damage_is_an_error(strict: Decoder, lenient: Decoder, route: tuple[str, str]) -> None:
    rng = np.random.default_rng(8)
    for _ in range(30):
        drawn = small(rng)
        box, data = Box(0, 0, 1 + drawn.width // 2, 1), damage(drawn.data, rng)
        for decoder in (strict, lenient):
            statuses, pictures, _ = decoder.regions(route, data, [box], checked=drawn.data)
            assert statuses == [Status.OK if data == drawn.data else Status.CHECKSUM]
            assert data == drawn.data or not pictures[0].any()


@pytest.mark.parametrize("route", FEW, ids="-".join)
def test_flipped_bits_without_a_checksum(strict: Decoder, lenient: Decoder, route: tuple[str, str]) -> None:
    """Each byte in turn, and each place to cut, in a file of two by two segments."""
    drawn = encode(texture(np.random.default_rng(4), 31, 29), "420", 1, 50)
    whole = Box(0, 0, drawn.width, drawn.height)
    for i in range(2, len(drawn.data)):
        flipped = drawn.data[:i] + bytes([drawn.data[i] ^ 1 << i % 8]) + drawn.data[i + 1 :]
        strict.regions(route, flipped, [whole])
        lenient.regions(route, flipped, [whole])
        statuses, pictures, _ = strict.regions(route, drawn.data[:i], [whole])
        assert statuses[0] in (Status.CORRUPT, Status.TRUNCATED), i
        assert not pictures[0].any()
