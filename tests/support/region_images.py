"""Random JPEGs, and their regions decoded on every path of the native kernel."""

import os
from collections.abc import Sequence
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from kernel_images import Pixels, batch_of, jpeg, upright
from numpy.typing import NDArray
from PIL import ImageFile

from iofast.errors import DecodeError
from iofast.kernel import native
from iofast.kernel.contract import DecodeOptions, Kind
from tools.odd_images.jpegs import rearranged

ImageFile.MAXBLOCK = 1 << 22  # else Pillow cannot write noise at the highest quality with optimised tables
ROUTES = tuple((way, simd) for way in ("own", "splice", "libjpeg") for simd in ("scalar", "avx2", "avx512"))
# Name: the factors of luma, and those of the sampling that Pillow writes with as many blocks per MCU, and its name
SAMPLING = {
    "gray": ((1, 1), (1, 1), "4:4:4"),
    "444": ((1, 1), (1, 1), "4:4:4"),
    "422": ((2, 1), (2, 1), "4:2:2"),
    "420": ((2, 2), (2, 2), "4:2:0"),
    "440": ((1, 2), (2, 1), "4:2:2"),
    "411": ((4, 1), (2, 2), "4:2:0"),
    "441": ((1, 4), (2, 2), "4:2:0"),
}
OWN = ("gray", "444", "422", "420")  # decoded by our decoder; libjpeg decodes the others


class Drawn(NamedTuple):
    """A JPEG and its properties; `restart` is in MCUs, 0 = no markers."""

    data: bytes
    sampling: str
    width: int
    height: int
    restart: int

    @property
    def across(self) -> int:
        """MCUs in a row."""
        return -(-self.width // (8 * SAMPLING[self.sampling][0][0]))

    def way(self, route: str) -> str:
        """The path that the kernel must take if IOFAST_REGION is `route`."""
        tiny = self.sampling in ("422", "420") and self.width <= 4  # libjpeg upsamples these differently
        if route == "libjpeg" or self.sampling not in OWN or tiny:
            return "libjpeg"
        if route == "own":
            return "segments" if self.restart else "rows"
        return "splice" if self.restart and self.across % self.restart == 0 else "libjpeg"


def texture(rng: np.random.Generator, width: int, height: int) -> Pixels:
    """Pixels of a random character: smooth, noisy, full of edges, flat, or of levels 0 and 255."""
    kind, shape = rng.integers(5), (height, width, 3)
    if kind == 0:
        return rng.integers(0, 256, shape, np.uint8)
    if kind == 1:
        return np.full(shape, rng.integers(0, 256, 3), np.uint8)
    if kind == 2:
        return rng.choice(np.array([0, 255], np.uint8), shape)
    x, y = np.arange(width)[None, :, None], np.arange(height)[:, None, None]
    waves = np.sin(x * rng.uniform(0.01, 1, 3) + y * rng.uniform(0.01, 1, 3) + rng.uniform(0, 6, 3))
    if kind == 3:
        waves = np.sign(waves)
    return (128 + 110 * waves + rng.normal(0, 4, shape)).clip(0, 255).astype(np.uint8)


def encode(pixels: Pixels, sampling: str, restart: int, quality: int = 90, optimize: bool = False) -> Drawn:
    """`pixels` as a JPEG. If Pillow does not write the sampling, chroma is wrong, which does not matter."""
    height, width = pixels.shape[:2]
    options: dict[str, object] = {"quality": quality, "optimize": optimize}
    if restart:
        options["restart_marker_blocks"] = restart
    factors, source, name = SAMPLING[sampling]
    if factors == source:
        made = jpeg(pixels, "L" if sampling == "gray" else "RGB", subsampling=name, **options)
    else:
        made = rearranged(pixels, factors, source, name, **options)
    return Drawn(made, sampling, width, height, restart)


def draw(rng: np.random.Generator) -> Drawn:
    """A random JPEG up to 200 x 200, sometimes 600 x 600, of any sampling, quality, tables and restart interval."""
    limit = int(rng.choice((9, 40, 200, 200, 200, 600)))
    width, height = (int(v) for v in rng.integers(1, limit + 1, 2))
    sampling = str(rng.choice((*OWN, *OWN, *OWN, *SAMPLING)))
    row = Drawn(b"", sampling, width, height, 0).across
    intervals = (0, 1, 2, 4, row, row, 2 * row, row + 1, 65_535, rng.integers(1, 40))
    quality, optimize = int(rng.choice((5, 30, 75, 90, 95, 100))), bool(rng.random() < 0.4)
    return encode(texture(rng, width, height), sampling, int(rng.choice(intervals)), quality, optimize)


class Box(NamedTuple):
    x: int
    y: int
    width: int
    height: int


def draw_boxes(rng: np.random.Generator, drawn: Drawn, count: int = 6) -> list[Box]:
    """The whole image, one pixel in each corner, and random boxes, many of which touch an edge."""
    width, height = drawn.width, drawn.height
    boxes = [Box(0, 0, width, height)]
    boxes += [Box(x, y, 1, 1) for x in {0, width - 1} for y in {0, height - 1}]
    for _ in range(count):
        w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
        x, y = rng.integers(0, width - w + 1), rng.integers(0, height - h + 1)
        x, y = (rng.choice((0, a, b)) for a, b in ((x, width - w), (y, height - h)))
        boxes.append(Box(int(x), int(y), w, h))
    return boxes


class Recipe(NamedTuple):
    """How to transcode an image: to `goal` (width, height), decoded at 1/`scale`."""

    goal: tuple[int, int]
    scale: int = 1
    orientation: int = 1
    subsampling: str = "420"  # or 444
    kind: Kind = Kind.ENCODED


class Decoder:
    """Decodes regions of a JPEG with a context for each path and instruction set."""

    def __init__(self, options: DecodeOptions | None = None, routes: Sequence[tuple[str, str]] = ROUTES) -> None:
        self.contexts = {}
        for way, simd in routes:
            with patch.dict(os.environ, IOFAST_REGION=way, IOFAST_SIMD=simd):
                self.contexts[way, simd] = native.Context(options or DecodeOptions())

    def regions(
        self, route: tuple[str, str], data: bytes, boxes: Sequence[Box], scale: int = 1, checked: bytes | None = None
    ) -> tuple[list[int], list[Pixels], list[str]]:
        """Status, pixels and path of each box, reduced by `scale`; `checked`: the bytes of the checksum."""
        context, statuses, pictures, ways = self.contexts[route], [], [], []
        source, _alive = batch_of([data])
        if checked is not None:
            source = source._replace(crcs=np.array([native.crc32c(checked)], np.uint32))
        before = context.counts().ways
        for box in boxes:
            w, h = max(1, box.width // scale), max(1, box.height // scale)
            out, status = np.full((1, h, w, 3), 99, np.uint8), np.full(1, -1, np.int32)
            geometry = (box.x, box.y, box.x + box.width, box.y + box.height, w, h, 0, 0)
            rows = np.array([geometry], np.int32)
            native.decode_batch(context, source, rows, np.zeros(1, np.uint8), out, status, 0, 1)
            after = context.counts().ways
            ways.append(next((name for name in after if after[name] > before[name]), ""))
            before = after
            statuses.append(int(status[0]))
            pictures.append(out[0])
        return statuses, pictures, ways

    def transcoded(
        self, route: tuple[str, str], data: bytes, size: tuple[int, int], recipe: Recipe
    ) -> tuple[int, bytes | None]:
        """Status and payload of a whole image of `size`, transcoded on this path."""
        box = (0, 0, *size, *recipe.goal, 0, 0)
        sampling = (2, 2) if recipe.subsampling == "420" else (1, 1)
        numbers = (*recipe.goal, recipe.orientation, 90, *sampling, 2, recipe.scale, recipe.kind)
        return native._native.transcode(self.contexts[route].handle, data, box, *numbers)


def claimed_size(data: bytes, most: int) -> tuple[int, int]:
    """The size in the header; 1 x 1 if that has more than `most` pixels or cannot be read."""
    try:
        header = native.read_header(data)
    except DecodeError:
        return 1, 1
    return (header.width, header.height) if header.width * header.height <= most else (1, 1)


def cut(image: NDArray[np.uint8], box: Box) -> Pixels:
    return image[box.y : box.y + box.height, box.x : box.x + box.width]


def check_regions(decoder: Decoder, drawn: Drawn, boxes: Sequence[Box]) -> None:
    """Assert that every route takes its path and gives Pillow's pixels."""
    whole = np.asarray(upright(drawn.data))
    for route in decoder.contexts:
        statuses, pictures, ways = decoder.regions(route, drawn.data, boxes)
        for box, status, pixels, way in zip(boxes, statuses, pictures, ways, strict=True):
            told = (route, drawn[1:], box)
            assert status == 0, (*told, status)
            assert way == drawn.way(route[0]), (*told, way)
            assert np.array_equal(pixels, cut(whole, box)), told
