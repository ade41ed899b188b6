"""Damaged JPEGs and any work for the device's code, built for the host."""

import random
from pathlib import Path

import numpy as np
from jpeg_damage import damage
from kernel_images import batch_of
from region_images import OWN, encode, texture

from benchmarks.gpu.any_work import any_work
from benchmarks.gpu.on_host import decode_on_host
from iofast import kernel
from iofast.gpu import jpegs
from iofast.gpu.stages import Output
from iofast.kernel.contract import TYPES, DecodeOptions, Finish
from tools.torture.drivers import Driver

FILES = 8  # of a step
SCALE = np.array([[0.017, 0.018, 0.019], [-2.1, -2.0, -1.8]], np.float32)


class Device(Driver):
    """Every step decodes and finishes a batch; what passes has the bits of the CPU kernel."""

    MEMORY = None

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        rng, self.sources = np.random.default_rng(6), []
        for number in range(60):
            width, height = (int(side) for side in rng.integers(5, 120, 2))
            restart, quality = int(rng.choice([1, 2, 3, 5, 8, 40])), int(rng.choice([30, 75, 90, 100]))
            self.sources.append(
                (encode(texture(rng, width, height), OWN[number % 4], restart, quality).data, (width, height))
            )

    def step(self, chance: random.Random) -> str:
        rng = np.random.default_rng(chance.getrandbits(64))
        chosen = [self.sources[place] for place in rng.integers(0, len(self.sources), FILES)]
        files = [data if rng.random() < 0.2 else damage(data, rng) for data, _ in chosen]
        turns = [int(turn) if rng.random() < 0.5 else 1 for turn in rng.integers(1, 9, FILES)]
        high, wide = (int(side) for side in rng.integers(1, 60, 2))
        boxes = np.zeros((FILES, 8), np.int32)
        for row, ((_, size), turn) in enumerate(zip(chosen, turns, strict=True)):
            sides = size[::-1] if turn >= 5 else size
            (x0, x1), (y0, y1) = (sorted(rng.choice(side + 1, 2, replace=False)) for side in sides)
            more = rng.integers(0, 9, 2)
            boxes[row] = (x0, y0, x1, y1, wide + more[0], high + more[1], *rng.integers(0, more + 1))
        type = str(rng.choice(list(TYPES)))
        finish = Finish(
            any_work(rng, FILES, (high, wide), int(rng.integers(4)), 1), SCALE, np.ones((1, 3), np.float32), type
        )
        self.compare(files, turns, boxes, finish, (high, wide))
        return "held"

    def compare(
        self, files: list[bytes], turns: list[int], boxes: np.ndarray, finish: Finish, size: tuple[int, int]
    ) -> None:
        source, _alive = batch_of(files, turns)
        options, flips = DecodeOptions(), np.zeros(FILES, np.uint8)
        found, plain = np.zeros((FILES, *size, 3), TYPES[finish.type]), np.zeros((FILES, *size, 3), np.uint8)
        crops = jpegs.Crops(boxes, flips, source.orientations)
        mine = decode_on_host(source, crops, options, Output(size, found.strides, finish), found)  # type: ignore[arg-type]
        status, context = np.zeros(FILES, np.int32), kernel.Context(options)
        kernel.decode_batch(context, source, boxes, flips, plain, status, 0, FILES)
        expected = np.zeros_like(found)
        kernel.finish_batch(context, plain, finish, expected)
        partners = finish.work.partner
        good = (mine == 0) & (mine[partners] == 0)
        assert not status[mine == 0].any(), f"the kernel found {status} where the device found {mine}"
        assert (found[good].view(np.uint8) == expected[good].view(np.uint8)).all(), "other bits"
        self.counts.update({"files": FILES, "passed by the device": int((mine == 0).sum())})
