"""Random images and random work for the kernel's steps: usual, extreme and impossible."""

import itertools
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
from kernel_images import batch_of, jpeg

from benchmarks.gpu.any_work import any_numbers, any_work
from iofast import work
from iofast.kernel import native_batch
from iofast.kernel.contract import DecodeOptions, Finish
from tools.torture.drivers import Driver

MOST = 255  # steps of an image
SETS = ("avx512", "avx2", "scalar")
TYPES = {"uint8": np.uint8, "float32": np.float32, "bfloat16": np.uint16, "float16": np.float16}


class Drawing:
    """Random images and work."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def size(self) -> tuple[int, int]:
        """Height and width: most are small, some very high, very wide or both."""
        kind = self.rng.random()
        high, wide = self.rng.integers(1, 100 if kind < 0.8 else 700, 2).tolist()
        if kind > 0.99:
            high, wide = self.rng.integers(1, 4097, 2).tolist()
        elif kind > 0.97:
            high, wide = min(high, 9), 4096
        elif kind > 0.95:
            high, wide = 4096, min(wide, 9)
        return high, wide

    def array(self, shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
        """(N, height, width, 3) of any strides and content."""
        n, high, wide, channels = shape
        layout = self.rng.integers(4)
        if layout == 0:
            drawn = np.empty(shape, dtype)
        elif layout == 1:
            drawn = np.moveaxis(np.empty((n, channels, high, wide), dtype), 1, -1)
        elif layout == 2:
            drawn = np.empty((n, high + 2, wide + 3, channels + 1), dtype)[:, 1:-1, 2:-1, :channels]
        else:
            drawn = np.moveaxis(np.empty((n, channels, high, 2 * wide), dtype)[..., ::2], 1, -1)
        drawn[...] = self.rng.integers(0, 256, (n, 1, 1, channels))
        if dtype == np.uint8 and self.rng.random() < 0.9:
            drawn[...] = self.rng.integers(0, self.rng.integers(1, 257), shape)
        return drawn

    def finish(self, n: int, size: tuple[int, int], kind: str) -> Finish:
        """Work for `n` images of `size`; one in ten has steps that do not exist."""
        rng, pixels = self.rng, size[0] * size[1]
        count = MOST if rng.random() < 0.01 and pixels < 4096 else int(rng.integers(0, 13 if pixels < 1 << 20 else 3))
        erasings = int(rng.integers(0, 4))
        drawn = any_work(rng, n, size, count, erasings)
        if rng.random() < 0.1:
            strange = rng.choice([-128, -1, max(work.Step) + 1, 127], (n, count))
            codes = np.where(rng.random((n, count)) < 0.2, strange, drawn.steps)
            drawn = replace(drawn, steps=codes.astype(np.int8))
        return Finish(drawn, any_numbers(rng, 2, 3), any_numbers(rng, erasings, 3), kind)

    def box(self, size: tuple[int, int], high: int, wide: int) -> np.ndarray:
        """A region of an image, scaled to about the window; one in fifty has an impossible number."""
        width, height = size
        x0, x1 = sorted(self.rng.integers(0, width + 1, 2).tolist())
        y0, y1 = sorted(self.rng.integers(0, height + 1, 2).tolist())
        more = self.rng.integers(-20, 40, 4).tolist()
        box = [x0, y0, max(x1, x0 + 1), max(y1, y0 + 1), wide + more[0], high + more[1], more[2] // 4, more[3] // 4]
        if self.rng.random() < 0.02:
            box[int(self.rng.integers(8))] = int(self.rng.integers(-(2**31), 2**31))
        return np.array(box, np.int32)


class Steps(Driver):
    """Every step makes two calls with every instruction set."""

    MEMORY = None
    SLOW = 55.0  # an image may have 16 million pixels, and each runs on all instruction sets

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.contexts = {}
        for name, clip in itertools.product(SETS, (False, True)):
            os.environ["IOFAST_SIMD"] = name
            self.contexts[name, clip] = native_batch.Context(DecodeOptions(clip=clip))
        del os.environ["IOFAST_SIMD"]
        rng = np.random.default_rng(5)
        sizes = ((64, 48), (33, 61), (16, 16), (9, 5))
        self.sources = [(jpeg(rng.integers(0, 256, (*size[::-1], 3), np.uint8)), size) for size in sizes]

    def step(self, chance: random.Random) -> str:
        draw = Drawing(np.random.default_rng(chance.getrandbits(64)))
        self.finished(draw)
        self.decoded(draw)
        return "held"

    def finished(self, draw: Drawing) -> None:
        """Finish images that are decoded already."""
        high, wide = draw.size()
        n = int(draw.rng.integers(1, 4)) if high * wide < 1 << 16 else 1
        kind = str(draw.rng.choice(list(TYPES)))
        images = draw.array((n, high, wide, 3), np.uint8)
        finish, out = draw.finish(n, (high, wide), kind), draw.array((n, high, wide, 3), TYPES[kind])
        found = []
        for name in SETS:
            out[...] = 0
            native_batch.finish_batch(self.contexts[name, False], images, finish, out)
            found.append(np.ascontiguousarray(out))
            assert same(found[0], found[-1], kind), f"{name} and {SETS[0]} give different bits"
        codes = finish.work.steps
        unknown = (codes < 0) | (codes > max(work.Step))
        self.counts.update({"images": n, "steps": codes.size, "unknown steps": int(unknown.sum())})

    def decoded(self, draw: Drawing) -> None:
        """Finish images in the call that decodes them: the result is the same as afterwards."""
        rng, n = draw.rng, 3
        chosen = [self.sources[place] for place in rng.integers(0, len(self.sources), n)]
        high, wide = rng.integers(1, 80, 2).tolist()
        boxes = np.stack([draw.box(size, high, wide) for _, size in chosen])
        clip, kind = bool(rng.integers(2)), str(rng.choice(list(TYPES)))
        finish = draw.finish(n, (high, wide), kind)
        finish = finish._replace(work=finish.work.paired(np.arange(n)))
        source, _alive = batch_of([data for data, _ in chosen], rng.integers(1, 9, n).tolist())
        flips = rng.integers(0, 14, n).astype(np.uint8)
        inside = (boxes[:, 4] >= wide) & (boxes[:, 5] >= high)  # of others, a clipped window leaves pixels undefined
        for name in SETS:
            context = self.contexts[name, clip]
            at_once, plain, later = (draw.array((n, high, wide, 3), TYPES[each]) for each in (kind, "uint8", kind))
            plain[...] = 0
            status, again = np.zeros(n, np.int32), np.zeros(n, np.int32)
            native_batch.decode_batch(context, source, boxes, flips, at_once, status, 0, n, finish)
            native_batch.decode_batch(context, source, boxes, flips, plain, again, 0, n)
            assert np.array_equal(status, again), f"status {status} and {again}"
            native_batch.finish_batch(context, plain, finish, later)
            rows = (status == 0) & (inside | (not clip))
            assert same(at_once[rows], later[rows], kind), f"{name}: finishing later gives another image"
            self.counts["finished as decoded"] += int(rows.sum())


def same(one: np.ndarray, two: np.ndarray, kind: str) -> bool:
    """Whether all bits are equal; any NaN equals any other."""
    if kind == "uint8":
        return np.array_equal(one, two)
    views = [*map(np.ascontiguousarray, (one, two))]
    if kind == "bfloat16":
        views = [(each.astype(np.uint32) << 16).view(np.float32) for each in views]
    return np.array_equal(*views, equal_nan=True)
