"""Damaged JPEGs through every function of the kernel, and through every way to decode a region."""

import contextlib
import io
import itertools
import random
from pathlib import Path

import jpeg_damage
import numpy as np
import region_images as images
from kernel_images import batch_of
from PIL import Image

from iofast import kernel
from iofast.errors import DecodeError
from iofast.kernel import DecodeOptions, native, other_formats
from iofast.kernel.contract import Kind
from tools.odd_images.profiles import WIDE, rgb_profile
from tools.torture.drivers import Driver, damage

MAX_PIXELS, HEADER = 1 << 20, 700  # pixels; bytes
REDUCED = (("splice", "avx2"), ("splice", "scalar"), ("libjpeg", "avx2"))  # our own decoder does not scale
ROUTES = (("own", "avx512"), ("own", "avx2"), ("own", "scalar"), ("splice", "avx2"), ("libjpeg", "avx2"))
LIBJPEG = ROUTES[-1]


def corpus() -> list[bytes]:
    """Small JPEGs: gray, colour, CMYK, progressive, all subsamplings, restart markers, EXIF, a colour profile."""
    rng = np.random.default_rng(3)
    smooth = np.cumsum(np.cumsum(rng.normal(0, 1, (61, 83, 3)), 0), 1)
    colour = Image.fromarray(np.uint8(255 * (smooth - smooth.min()) / np.ptp(smooth)))
    exif = Image.Exif()
    exif[0x0112] = 6
    options = [
        *({"subsampling": s, "progressive": p} for s in (0, 1, 2) for p in (False, True)),
        {"restart_marker_blocks": 2},
        {"restart_marker_rows": 1, "optimize": True},
        {"exif": exif.tobytes(), "quality": 30},
        {"icc_profile": rgb_profile(WIDE)},
    ]
    encoded = []
    for mode, each in itertools.product(("RGB", "L", "CMYK"), options):
        buffer = io.BytesIO()
        colour.convert(mode).save(buffer, "JPEG", **each)
        encoded.append(buffer.getvalue())
    return encoded


def mutate(chance: random.Random, data: bytes) -> bytes:
    """One to eight changes, half of them in the header, where the sizes are."""
    if chance.random() < 0.5:
        return damage.anywhere(chance, data[:HEADER], 8) + data[HEADER:]
    return damage.anywhere(chance, data, 8)


class Anywhere(Driver):
    """Blind mutations through every function of the kernel."""

    MEMORY = None
    SLOW = 55.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seeds = corpus()
        options = itertools.product(kernel.FILTERS, (False, True), (False, True))
        self.contexts = [kernel.Context(DecodeOptions(*each, max_pixels=MAX_PIXELS)) for each in options]
        self.recipe = kernel.TranscodeRecipe(size=32, mode="short", max_pixels=MAX_PIXELS)

    def step(self, chance: random.Random) -> str:
        rng = np.random.default_rng(chance.getrandbits(64))
        data = mutate(chance, chance.choice(self.seeds))
        self.counts["row good"] += self.row(rng, data)
        rewritten = None
        with contextlib.suppress(DecodeError):
            rewritten = native.rewrite(data, int(rng.integers(9)), int(rng.integers(-1, 101)), MAX_PIXELS)
        try:
            header = kernel.read_header(data)
            if header.width * header.height > MAX_PIXELS:
                return "too large"
            kernel.decode(data)
            if rewritten is not None:  # compared by Pillow: one decoder for both, whatever the coefficients
                assert np.array_equal(other_formats.decode(rewritten), other_formats.decode(data))
                self.counts["rewritten"] += 1
            kernel.transcode(data, self.recipe)
        except DecodeError:
            return "refused"
        return "decoded"

    def row(self, rng: np.random.Generator, data: bytes) -> bool:
        """Decode one row of a batch, with a random box, filter and orientation. Return whether it gave pixels."""
        context, batch = self.contexts[rng.integers(len(self.contexts))], batch_of([data], [int(rng.integers(1, 9))])
        (x0, x1), (y0, y1) = np.sort(rng.integers(0, 62, 2)), np.sort(rng.integers(0, 62, 2))
        box = np.array([[x0, y0, x1 + 1, y1 + 1, *rng.integers(24, 60, 2), 0, 0]], np.int32)
        box[0, 6:] = rng.integers(0, box[0, 4:6] - (20, 24) + 1)
        if rng.random() < 0.1:  # an impossible box
            box[0, rng.integers(8)] = rng.choice((-(2**31), -1, 0, 1, 63, 70_000, 2**31 - 1))
        out, status = np.full((1, 24, 20, 3), 7, np.uint8), np.zeros(1, np.int32)
        kernel.decode_batch(context, batch.source, box, rng.integers(0, 2, 1, np.uint8), out, status, 0, 1)
        assert status[0] == 0 or not out.any(), "a failed slot is not zero"
        return bool(status[0] == 0)


class InPlaces(Driver):
    """Damage in known places of small files, through every way to decode a region."""

    MEMORY = None
    SLOW = 55.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.decoders = [
            (fast, images.Decoder(DecodeOptions(strict=strict, fast=fast, max_pixels=MAX_PIXELS), routes))
            for strict in (True, False)
            for fast, routes in ((False, ROUTES), (True, REDUCED))
        ]

    def seed(self, rng: np.random.Generator) -> bytes:
        """A sound JPEG of random size, sampling, markers and quality."""
        width, height = (int(v) for v in rng.integers(1, int(rng.choice((20, 70, 140))), 2))
        sampling = str(rng.choice((*images.OWN, *images.OWN, *images.SAMPLING)))
        row = images.Drawn(b"", sampling, width, height, 0).across
        restart, quality = int(rng.choice((0, 1, 1, 2, 3, row, row, 9))), int(rng.choice((20, 90, 98)))
        pixels = images.texture(rng, width, height)
        return images.encode(pixels, sampling, restart, quality, bool(rng.integers(2))).data

    def step(self, chance: random.Random) -> str:
        rng = np.random.default_rng(chance.getrandbits(64))
        data = jpeg_damage.damage(self.seed(rng), rng)
        fast, decoder = self.decoders[rng.integers(len(self.decoders))]
        return self.compare(rng, decoder, data, int(rng.choice((2, 4, 8))) if fast else 1)

    def compare(self, rng: np.random.Generator, decoder: images.Decoder, data: bytes, scale: int) -> str:
        """Decode the whole image in every way, and a region of it."""
        width, height = images.claimed_size(data, MAX_PIXELS)
        drawn = images.Drawn(data, "444", width, height, 0)
        boxes = [images.Box(0, 0, width, height), *images.draw_boxes(rng, drawn, 1)[-1:]]
        results = {route: decoder.regions(route, data, boxes, scale) for route in decoder.contexts}
        (expected, *_), (whole, *_), _ = results[LIBJPEG]
        for route, (statuses, pictures, ways) in results.items():
            assert statuses[0] == expected, f"{route}: status {statuses[0]}, libjpeg's is {expected}"
            assert np.array_equal(pictures[0], whole), f"{route}: other pixels than libjpeg's at 1/{scale}"
            for box, status, pixels, way in zip(boxes, statuses, pictures, ways, strict=True):
                assert status == 0 or not pixels.any(), "a failed slot is not zero"
                self.counts[f"by {way or 'none'}"] += 1
                if scale == 1 and expected == status == 0:
                    assert np.array_equal(pixels, images.cut(whole, box)), f"{route}: other pixels in {box}"
            self.counts["region good"] += statuses[1:].count(0)
        self.compare_packed(rng, decoder, data, (width, height), scale)
        return "refused" if expected else "decoded"

    def compare_packed(
        self, rng: np.random.Generator, decoder: images.Decoder, data: bytes, size: tuple[int, int], scale: int
    ) -> None:
        """Transcode the whole image in every way: by planes, or by pixels, to one result."""
        kind, subsampling = Kind(int(rng.integers(2))), str(rng.choice(("420", "444")))
        goal = int(rng.integers(1, 80)), int(rng.integers(1, 80))
        recipe = images.Recipe(goal, scale, int(rng.integers(1, 9)), subsampling, kind)
        upright = size[::-1] if recipe.orientation >= 5 else size
        made = {decoder.transcoded(route, data, upright, recipe) for route in decoder.contexts}
        assert len(made) == 1, f"{len(made)} results of transcoding, statuses {sorted({status for status, _ in made})}"
        self.counts["packed"] += not next(iter(made))[0]
