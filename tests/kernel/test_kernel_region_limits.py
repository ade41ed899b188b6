"""Limits of our region decoder: undefined codes, false sizes in headers, and state left by other images."""

import itertools
import resource

import numpy as np
import pytest
from jpeg_damage import DHT, DQT, SOF, SOS, Parts, stuffed
from kernel_images import jpeg, photo, with_size
from region_images import Box, Decoder, encode

from iofast.kernel import native
from iofast.kernel.contract import DecodeOptions, Status

OURS, LIBJPEG = ("own", "avx2"), ("libjpeg", "avx2")
ROUTES = (OURS, ("own", "scalar"), ("own", "avx512"), ("splice", "avx2"), LIBJPEG)


def packed(bits: str) -> bytes:
    """Bits as entropy-coded data: padded with ones, stuffed."""
    bits += "1" * (-len(bits) % 8)
    return stuffed(int(bits, 2).to_bytes(len(bits) // 8, "big"))


def codes(kind: int, lengths: dict[int, list[int]]) -> tuple[int, bytes]:
    """A DHT segment: code length -> symbols. `kind` 0 = DC, 0x10 = AC."""
    counts = bytes(len(lengths.get(n, [])) for n in range(1, 17))
    return DHT, bytes([kind]) + counts + b"".join(bytes(lengths[n]) for n in sorted(lengths))


def gray(blocks: list[str], dc: dict[int, list[int]], ac: dict[int, list[int]], quant: int = 1) -> bytes:
    """A gray JPEG of 8 x 8 blocks side by side, each a string of bits."""
    header = [
        (DQT, b"\0" + bytes([quant] * 64)),
        (SOF, b"\x08\0\x08" + (8 * len(blocks) % 65_536).to_bytes(2, "big") + b"\1\1\x11\0"),
        codes(0, dc),
        codes(0x10, ac),
        (SOS, bytes([1, 1, 0, 0, 63, 0])),
    ]
    return Parts(header, [packed("".join(blocks))], [b"\xff\xd9"]).join()


def outcome(data: bytes, strict: bool, size: tuple[int, int]) -> tuple[int, list[str]]:
    """The status, with the pixels identical on all paths; and the paths."""
    decoder = Decoder(DecodeOptions(strict=strict), ROUTES)
    results = [decoder.regions(route, data, [Box(0, 0, *size)]) for route in ROUTES]
    for statuses, pictures, _ in results:
        assert statuses == results[-1][0]
        np.testing.assert_array_equal(pictures[0], results[-1][1][0])
    return results[0][0][0], [ways[0] for *_, ways in results]


DC, AC = {2: [0, 3, 7]}, {2: [0x00, 0x01], 3: [0xF0, 0x03]}  # AC: end of block, +-1, sixteen zeros, three bits
END, ONE, ZEROS = "00", "011", "100"

BLOCKS = {  # the bits of a block, and whether they are valid
    "flat": ("00" + END, True),
    "no such DC code": ("11" + "0" * 14 + END, False),
    "no such AC code": ("00" + ONE + "110" + "0" * 13, False),
    "full": ("00" + ONE * 63, True),
    "zeros up to the last": ("00" + ZEROS * 3 + ONE * 15, True),
    "zeros over the end by one": ("00" + ZEROS * 3 + ONE + ZEROS, True),  # libjpeg accepts it
    "zeros far over the end": ("00" + ZEROS * 9, True),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str) -> None:
    """An undefined code was once taken for an end of block, and the following bits for the next block."""
    bits, whole = BLOCKS[name]
    data = gray(["01111" + END, bits, "01000" + END, *["00" + END] * 9], DC, AC)
    assert outcome(data, True, (96, 8))[0] == (Status.OK if whole else Status.CORRUPT)
    assert outcome(data, False, (96, 8))[0] == Status.OK


def test_a_value_over_the_end() -> None:
    """A run ends right behind the block: libjpeg stores the value in the last place; ours once dropped it."""
    ac = {2: [0x00, 0x01], 3: [0xF0, 0x31]}
    data = gray(["00" + ZEROS * 3 + ONE * 12 + "1011" + END, "00" + END, *["00" + END] * 9], DC, ac, 40)
    assert outcome(data, True, (88, 8))[0] == Status.OK


@pytest.mark.parametrize("full", [{2: [0, 1, 2, 3]}, {1: [0, 1]}, {1: [0], 2: [1], 3: [2, 3]}])
def test_no_code_is_all_ones(full: dict[int, list[int]]) -> None:
    """libjpeg refuses such a table, even if it is unused."""
    for strict in (True, False):
        assert outcome(gray(["00" + END], full, AC), strict, (8, 8))[0] == Status.CORRUPT
        assert outcome(gray(["00" + END], DC, full), strict, (8, 8))[0] == Status.CORRUPT


def test_values_beyond_16_bits() -> None:
    """If a flat block overflows 16 bits, libjpeg-turbo's vector code wraps; ours once saturated."""
    dc = {2: [0, 7, 10]}
    for steps, quant in itertools.product((1, 3, 9, 40), (1, 9, 255)):
        data = gray(["10" + "1" * 10 + END] * steps + ["00" + ONE + END, "01" + "0" * 7 + END], dc, AC, quant)
        status, ways = outcome(data, True, (8 * steps + 16, 8))
        assert status == Status.OK
        assert (ways[0] == "rows") == (1023 * steps * quant < 8192)


@pytest.mark.parametrize("side", [65_500, 65_501, 65_535])
def test_libjpegs_largest_side(side: int) -> None:
    decoder = Decoder(routes=ROUTES)
    data = gray(["00" + END] * 8192, DC, AC)
    for size in ((side, 8), (8, side)):
        for route in ROUTES:
            statuses, *_ = decoder.regions(route, with_size(data, *size), [Box(0, 0, 8, 8)])
            assert statuses == [Status.OK if side <= 65_500 else Status.CORRUPT], (route, size)


@pytest.mark.parametrize("strict", [True, False])
def test_tables_of_an_image_do_not_affect_the_next(strict: bool) -> None:
    """libjpeg keeps tables over an abort, so a file without tables once used those of the image before."""
    whole = jpeg(photo(40, 30), optimize=True)
    bare = []
    for kind in (DHT, DQT):
        parts = Parts.of(jpeg(photo(40, 30, 1)))
        parts.header = [segment for segment in parts.header if segment[0] != kind]
        bare.append(parts.join())
    for route, data in itertools.product(ROUTES, bare):
        fresh = Decoder(DecodeOptions(strict=strict), [route]).regions(route, data, [Box(0, 0, 40, 30)])
        used = Decoder(DecodeOptions(strict=strict), [route])
        for before in (whole, jpeg(photo(9, 9), progressive=True), jpeg(photo(9, 9), "CMYK")):
            used.regions(route, before, [Box(0, 0, 9, 9)])
        again = used.regions(route, data, [Box(0, 0, 40, 30)])
        assert fresh[0] == again[0]
        np.testing.assert_array_equal(fresh[1][0], again[1][0])
    # without Huffman tables it is Motion JPEG with the standard's; without quantisation tables it is invalid
    assert [native.decode(data).shape for data in bare[:1]] == [(30, 40, 3)]


@pytest.mark.parametrize("restart", [0, 1, 8187, 65_535])
@pytest.mark.parametrize("strict", [True, False])
def test_a_small_file_of_a_huge_size(strict: bool, restart: int) -> None:
    """Time (this ends) and memory for a region are bounded by the size of the file."""
    drawn = encode(photo(160, 120), "420", restart)
    decoder = Decoder(DecodeOptions(strict=strict, max_pixels=1 << 32), ROUTES)
    data = with_size(drawn.data, 65_500, 65_500)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for route in ROUTES:
        statuses, *_ = decoder.regions(route, data, [Box(0, 0, 300, 16)])
        far, *_ = decoder.regions(route, data, [Box(65_300, 0, 200, 40), Box(9, 65_499, 1, 1)] if strict else [])
        assert statuses == [Status.OK if not strict else statuses[0]]
        assert Status.OK not in far
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10, "KiB"


def test_as_many_segments_as_there_can_be() -> None:
    """Markers with nothing between them are an error, with memory of a few times the size of the file."""
    parts = Parts.of(jpeg(photo(16, 16), "L", restart_marker_blocks=1))
    parts.scan = [b""] * 200_000
    parts.number()
    data = with_size(parts.join(), 8 * 4000, 8 * 50)
    decoder = Decoder(DecodeOptions(), ROUTES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for route in ROUTES:
        statuses, *_ = decoder.regions(route, data, [Box(5, 390, 30, 10)])
        assert statuses[0] in (Status.CORRUPT, Status.TRUNCATED)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 << 10, "KiB"


def test_a_large_black_image() -> None:
    """A valid, small file with two bits per block. A crop at its end skips all other blocks."""
    data = with_size(gray(["00" + END], DC, AC), 65_496, 800)
    parts = Parts.of(data)
    parts.scan = [packed(("00" + END) * (8187 * 100))]
    decoder = Decoder(DecodeOptions(), ROUTES)
    for route in ROUTES:
        statuses, pictures, _ = decoder.regions(route, parts.join(), [Box(65_400, 780, 90, 20)])
        assert statuses == [Status.OK]
        assert (pictures[0] == 128).all()


def test_reading_stops_at_the_buffers_end() -> None:
    """A payload ends with its memory, at each of its last bytes; the sanitizers detect reads beyond it."""
    drawn = encode(photo(33, 17), "420", 1)
    for way in (OURS, LIBJPEG):
        decoder = Decoder(DecodeOptions(strict=False), [way])
        for end in range(len(drawn.data) - 300, len(drawn.data)):
            assert decoder.regions(way, drawn.data[:end], [Box(29, 13, 4, 4)])[0] == [Status.OK]
