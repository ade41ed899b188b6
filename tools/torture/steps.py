"""No work, size, layout or type makes the kernel's steps and its store crash, or read and write where they should not.

Twenty minutes on a build with address and undefined-behaviour sanitizers: images of 1 x 1 to 4096 x 4096 pixels, up
to 255 steps of every kind (unknown ones too) whose numbers are usual, extreme, infinite or none, erased and mixed
anywhere, in and out of any layout and type, by themselves and in the call that decodes. Every instruction set makes the
same bits, steps the same as torch, and an image that is finished as it is decoded the same as one that is finished
later. Then each allocation fails once: that is a MemoryError or a status, and the next call with the same context makes
what it should.
"""

from __future__ import annotations

import ctypes
import io
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

SECONDS = 1200
MOST = 255  # steps of an image
ROOT = Path(__file__).resolve().parents[2]
SETS = ("avx512", "avx2", "scalar")
TYPES = {"uint8": np.uint8, "float32": np.float32, "bfloat16": np.uint16, "float16": np.float16}
COMPARED = 1 << 14  # pixels up to which torch makes the same: it takes a thousand times as long
EXTREMES = (0.0, 1.0, -1.0, 0.5, 255.0, 256.0, 1e9, -1e9, 1e30, -1e30, float("inf"), float("-inf"), float("nan"))
FIELDS = ("images", "finished as decoded", "compared with torch", "steps", "unknown steps", "faults")


def run() -> list[str]:
    from tools.torture import Failed  # here, because the process with sanitizers has no `tools`

    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "counts"
        library = Path(folder) / "memory_faults.so"
        source = Path(__file__).with_name("memory_faults.c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", library, source], check=True)
        script = [ROOT / "tools" / "sanitize.sh", sys.executable, "--", __file__, "fuzz", said]
        faulty = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": str(ROOT)}
        for command, env in ((script, None), ([sys.executable, __file__, "faults", said, library], faulty)):
            result = subprocess.run([*map(str, command)], cwd=ROOT, env=env)
            if result.returncode:
                raise Failed(f"{command[-2]} ended with status {result.returncode}; the report stands above")
            counts.update(dict(zip(FIELDS, map(int, said.read_text().split()), strict=True)))
    return [
        f"- {counts['images']:,} images in {SECONDS / 60:.0f} minutes with {counts['steps']:,} steps, "
        f"{counts['unknown steps']:,} of them unknown, on {', '.join(SETS)}",
        f"- {counts['finished as decoded']:,} finished in the call that decoded them, and the same later",
        f"- {counts['compared with torch']:,} compared with torch, bit for bit",
        f"- {counts['faults']:,} allocations that failed, one at a time",
    ]


class Drawing:
    """Random images and work."""

    def __init__(self, rng: np.random.Generator) -> None:
        from iofast import work

        self.rng, self.work = rng, work

    def size(self) -> tuple[int, int]:
        """Height and width, small for the most part."""
        kind = self.rng.random()
        high, wide = self.rng.integers(1, 100 if kind < 0.8 else 700, 2).tolist()
        if kind > 0.99:
            high, wide = self.rng.integers(1, 4097, 2).tolist()
        elif kind > 0.95:
            high, wide = (high, 4096) if kind > 0.97 else (4096, wide)
            high, wide = (min(high, 9), wide) if wide == 4096 else (high, min(wide, 9))
        return high, wide

    def array(self, shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
        """(N, height, width, 3) of any strides, with anything in it."""
        n, high, wide, channels = shape
        layout = self.rng.integers(4)
        if layout == 0:
            made = np.empty(shape, dtype)
        elif layout == 1:
            made = np.moveaxis(np.empty((n, channels, high, wide), dtype), 1, -1)
        elif layout == 2:
            made = np.empty((n, high + 2, wide + 3, channels + 1), dtype)[:, 1:-1, 2:-1, :channels]
        else:
            made = np.moveaxis(np.empty((n, channels, high, 2 * wide), dtype)[..., ::2], 1, -1)
        made[...] = self.rng.integers(0, 256, (n, 1, 1, channels))
        if dtype == np.uint8 and self.rng.random() < 0.9:
            made[...] = self.rng.integers(0, self.rng.integers(1, 257), shape)
        return made

    def numbers(self, shape: tuple[int, ...]) -> np.ndarray:
        """Floats: usual ones, whole ones, and those that nobody would give."""
        usual = self.rng.normal(0, 1, shape) * 10.0 ** self.rng.integers(-1, 3, shape)
        kind = self.rng.random(shape)
        made = np.where(kind < 0.5, usual, np.rint(usual))
        return np.where(kind > 0.93, self.rng.choice(EXTREMES, shape), made).astype(np.float32)

    def rectangles(self, shape: tuple[int, ...]) -> np.ndarray:
        made = self.rng.integers(-20, 120, (*shape, 4)).astype(np.int32)
        wild = self.rng.random((*shape, 4)) < 0.05
        return np.where(wild, self.rng.integers(-(2**31), 2**31, (*shape, 4)), made).astype(np.int32)

    def finish(self, n: int, pixels: int, kind: str):
        """What is done to `n` images."""
        from iofast.kernel.contract import Finish

        work, rng = self.work, self.rng
        most = 12 if pixels < 1 << 20 else 2
        count = MOST if rng.random() < 0.01 and pixels < 4096 else int(rng.integers(0, most + 1))
        known = [int(step) for step in work.Step]
        codes = rng.choice(known, (n, count)).astype(np.int8)
        if count == MOST:
            codes[:] = work.Step.ADD
            codes[:, 0], codes[:, -1] = work.Step.KEEP, work.Step.SUM
        if rng.random() < 0.1:
            strange = rng.random(codes.shape) < 0.2
            codes = np.where(strange, rng.choice([-128, -1, max(known) + 1, 127], codes.shape), codes).astype(np.int8)
        erasings = int(rng.integers(0, 4))
        rows = np.arange(n)
        partner = np.where(rng.random() < 0.5, rows, np.minimum(rows ^ 1, n - 1))
        made = work.Work(
            steps=codes,
            numbers=self.numbers((n, count, work.NUMBERS)),
            erased=self.rectangles((n, erasings)),
            fills=self.numbers((n, erasings, 3)),
            noise=rng.integers(0, 3, (n, erasings)).astype(np.int32),
            partner=np.where(partner[partner] == rows, partner, rows),
            share=self.numbers((n,)),
            patch=self.rectangles((n,)),
            own=np.ones(n, np.float32),
        )
        return Finish(made, self.numbers((2, 3)), self.numbers((erasings, 3)), kind)


class Fuzz:
    """One step after the other, each a call or two of every instruction set."""

    def __init__(self, rng: np.random.Generator, counts: Counter[str]) -> None:
        from iofast.kernel import native_batch
        from iofast.kernel.contract import DecodeOptions

        self.rng, self.counts, self.native, self.draw = rng, counts, native_batch, Drawing(rng)
        self.contexts = {}
        for name, clip in itertools.product(SETS, (False, True)):
            os.environ["IOFAST_SIMD"] = name
            self.contexts[name, clip] = native_batch.Context(DecodeOptions(clip=clip))
        self.sources = [_jpeg(rng, *size) for size in ((64, 48), (33, 61), (16, 16), (9, 5))]

    def finished(self, name: str, images: np.ndarray, finish, out: np.ndarray) -> np.ndarray:
        out[...] = 0
        self.native.finish_batch(self.contexts[name, False], images, finish, out)
        return np.ascontiguousarray(out)

    def batch(self) -> None:
        """Images that are there already."""
        high, wide = self.draw.size()
        n = int(self.rng.integers(1, 4)) if high * wide < 1 << 16 else 1
        kind = str(self.rng.choice(list(TYPES)))
        images = self.draw.array((n, high, wide, 3), np.uint8)
        finish = self.draw.finish(n, high * wide, kind)
        out = self.draw.array((n, high, wide, 3), TYPES[kind])
        made = [self.finished(name, images, finish, out) for name in SETS]
        for name, each in zip(SETS[1:], made[1:], strict=True):
            assert _same(made[0], each, kind), f"{name} makes other bits than {SETS[0]}"
        codes = finish.work.steps
        unknown = (codes < 0) | (codes > max(self.draw.work.Step))
        self.counts.update({"images": n, "steps": codes.size, "unknown steps": int(unknown.sum())})
        if kind == "uint8" and high * wide <= COMPARED and codes.shape[1] < MOST and not unknown.any():
            self.compare(images, finish.work, made[0])

    def compare(self, images: np.ndarray, work, made: np.ndarray) -> None:
        import torch

        from iofast.pixels.steps import take_steps

        plain = torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, -1, 1)))
        wanted = take_steps(plain, work.steps, work.numbers)
        assert np.array_equal(np.moveaxis(wanted.numpy(), 1, -1), made), f"torch makes others of {work.steps.tolist()}"
        self.counts["compared with torch"] += len(made)

    def decoded(self) -> None:
        """Finished in the call that decodes: the same as afterwards."""
        from iofast.kernel.contract import Payloads

        rng, n = self.rng, 3
        chosen = [self.sources[place] for place in rng.integers(0, len(self.sources), n)]
        high, wide = rng.integers(1, 80, 2).tolist()
        boxes = np.stack([self.box(size, high, wide) for _, size in chosen])
        clip = bool(rng.integers(2))
        kind = str(rng.choice(list(TYPES)))
        finish = self.draw.finish(n, high * wide, kind)
        finish = finish._replace(work=finish.work.paired(np.arange(n)))
        source = Payloads(
            np.full(n, -1, np.int32),
            np.array([data.ctypes.data for data, _ in chosen], np.uint64),
            np.array([data.size for data, _ in chosen], np.uint64),
            None,
            rng.integers(1, 9, n).astype(np.uint8),
            None,
        )
        flips = rng.integers(0, 14, n).astype(np.uint8)
        for name in SETS:
            context = self.contexts[name, clip]
            at_once, plain = (self.draw.array((n, high, wide, 3), TYPES[each]) for each in (kind, "uint8"))
            plain[...] = 0  # what a clipped window leaves undefined
            status, again = np.zeros(n, np.int32), np.zeros(n, np.int32)
            self.native.decode_batch(context, source, boxes, flips, at_once, status, 0, n, finish)
            self.native.decode_batch(context, source, boxes, flips, plain, again, 0, n)
            assert np.array_equal(status, again), f"status {status} and {again}"
            later = self.draw.array((n, high, wide, 3), TYPES[kind])
            self.native.finish_batch(context, plain, finish, later)
            whole = [row for row in range(n) if not status[row] and (not clip or _whole(boxes[row], high, wide))]
            assert _same(at_once[whole], later[whole], kind), f"{name}: finished later it is another"
            self.counts["finished as decoded"] += len(whole)

    def box(self, size: tuple[int, int], high: int, wide: int) -> np.ndarray:
        width, height = size
        x0, x1 = sorted(self.rng.integers(0, width + 1, 2).tolist())
        y0, y1 = sorted(self.rng.integers(0, height + 1, 2).tolist())
        more = self.rng.integers(-20, 40, 4).tolist()
        made = [x0, y0, max(x1, x0 + 1), max(y1, y0 + 1), wide + more[0], high + more[1], more[2] // 4, more[3] // 4]
        if self.rng.random() < 0.02:
            made[int(self.rng.integers(8))] = int(self.rng.integers(-(2**31), 2**31))
        return np.array(made, np.int32)


def _whole(box: np.ndarray, high: int, wide: int) -> bool:
    return bool(box[4] >= wide and box[5] >= high)


def _same(one: np.ndarray, two: np.ndarray, kind: str) -> bool:
    """To the bit; but what is no number may be any such."""
    if kind == "uint8":
        return np.array_equal(one, two)
    views = [*map(np.ascontiguousarray, (one, two))]
    if kind == "bfloat16":
        views = [(each.astype(np.uint32) << 16).view(np.float32) for each in views]
    return np.array_equal(*views, equal_nan=True)


def _jpeg(rng: np.random.Generator, width: int, height: int) -> tuple[np.ndarray, tuple[int, int]]:
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(buffer, "JPEG", quality=90)
    return np.frombuffer(buffer.getvalue(), np.uint8), (width, height)


def fuzz(said: Path) -> None:
    from iofast.kernel import _native

    assert Path(_native.__file__).is_relative_to(os.environ["IOFAST_BUILD"]), f"no sanitizers: {_native.__file__}"
    seed = time.time_ns() % 2**32
    print(f"seed {seed}", flush=True)
    counts: Counter[str] = Counter()
    rng, until = np.random.default_rng(seed), time.monotonic() + SECONDS
    all_of_them = Fuzz(rng, counts)
    while time.monotonic() < until:
        all_of_them.batch()
        all_of_them.decoded()
    said.write_text(" ".join(str(counts[field]) for field in FIELDS))


def faults(said: Path, library: str) -> None:
    """Each allocation of a program that takes all scratch memory there is fails once."""
    from iofast.kernel import native_batch
    from iofast.kernel.contract import DecodeOptions, Payloads

    preloaded, rng, failed = ctypes.CDLL(library), np.random.default_rng(1), 0
    draw = Drawing(rng)
    data, (width, height) = _jpeg(rng, 64, 48)
    finish = draw.finish(2, 1 << 10, "float32")
    steps = [int(step) for step in draw.work.Step if step > 0]
    codes = np.tile(np.array(steps, np.int8), (2, 1))
    values = np.ones((2, len(steps), draw.work.NUMBERS), np.float32)
    work = draw.work.no_work(2).paired(np.array([1, 0]))
    work = type(work)(**{**{name: getattr(work, name) for name in work.__slots__}, "steps": codes, "numbers": values})
    finish = finish._replace(work=work, amounts=np.zeros((0, 3), np.float32))
    images = draw.array((2, 48, 64, 3), np.uint8)
    address, size = np.full(2, data.ctypes.data, np.uint64), np.full(2, data.size, np.uint64)
    source = Payloads(np.full(2, -1, np.int32), address, size, None, np.ones(2, np.uint8), None)
    boxes = np.tile(np.array([0, 0, width, height, 64, 48, 0, 0], np.int32), (2, 1))

    def once(context, out: np.ndarray) -> bool:
        """Whether memory was enough for both calls."""
        status = np.zeros(2, np.int32)
        try:
            native_batch.finish_batch(context, images, finish, out[0])
            own = finish._replace(work=work.paired(np.arange(2)))
            native_batch.decode_batch(context, source, boxes, np.zeros(2, np.uint8), out[1], status, 0, 2, own)
        except MemoryError:
            return False
        return not status.any()

    wanted = np.zeros((2, 2, 48, 64, 3), np.float32)
    assert once(native_batch.Context(DecodeOptions()), wanted)
    for number in itertools.count(1):
        context, out = native_batch.Context(DecodeOptions()), np.zeros_like(wanted)
        preloaded.fail_allocation(number)
        enough = once(context, out)
        met = preloaded.allocations()
        preloaded.fail_allocation(0)
        if met < number:
            break
        assert not enough, f"allocation {number} failed, and nothing was said of it"
        assert once(context, out), f"after allocation {number} failed the context makes nothing any more"
        assert np.array_equal(out, wanted, equal_nan=True), f"after allocation {number} failed it makes others"
        failed += 1
    assert failed > 5, f"only {failed} allocations were met"
    said.write_text(f"0 0 0 0 0 {failed}")


if __name__ == "__main__":
    {"fuzz": fuzz, "faults": faults}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
