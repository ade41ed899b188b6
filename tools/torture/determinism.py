"""The same global batches, ids and pixels, for any ranks and workers, before and after a resume anywhere.

Ranks {1, 2, 3, 8} x workers {1, 2, 5} x resume points {0, 1, middle, last, next epoch} x every order. Sequences of ids
and of SHA-256 over pixels are compared batch by batch, never sorted. One process plays all ranks, but for a part under
torchrun, whose processes find their ranks by themselves.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from iofast import FastDataset, FastLoader, open_writer, order
from iofast import transforms as T
from tools.torture import Failed

IMAGES, B, SEED, EPOCHS = 100, 24, 7, 2
RANKS, WORKERS = (1, 2, 3, 8), (1, 2, 5)
POINTS = ("start", "first", "middle", "last", "next")
TRANSFORM = (T.RandomResizedCrop(16), T.RandomHorizontalFlip())
BUCKETS = ((16, 16), (12, 20), (20, 12))
TORCHRUN = (2, 3)  # processes


class GlobalBatch(NamedTuple):
    """What all ranks together return: the ids of its valid samples in order, and the SHA-256 of each one's pixels."""

    ids: tuple[int, ...]
    pixels: tuple[str, ...]


Part = tuple[list[int], list[str]]  # one rank's


def datasets(folder: Path) -> Mapping[str, FastDataset]:
    """Two containers, and both as one: small photographs-like noise whose labels are their numbers."""
    paths = [folder / "one.lmdb", folder / "other.lmdb"]
    rng, number = np.random.default_rng(SEED), 0
    for path, count in zip(paths, (IMAGES - 30, 30), strict=True):
        with open_writer(path) as writer:
            for _ in range(count):
                shape = (int(rng.integers(20, 60)), int(rng.integers(20, 60)), 3)
                file = BytesIO()
                Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(file, "JPEG")
                writer.write({"jpg": file.getvalue(), "cls": number})
                number += 1
    return {"joined": FastDataset(paths), "one": FastDataset(paths[0])}


def modes() -> Mapping[str, order.Mode]:
    """Every order, by name."""
    return {
        "sequential": order.Sequential(),
        "shuffled": order.Shuffled(),
        "blocks": order.Blocks(block=8, window=3),
        "weighted": order.Weighted(np.arange(1, IMAGES + 1), length=70),
        "balanced": order.Balanced(),
        "repeated": order.Repeated(3),
        "mixed": order.Mixed((0.3, 0.7)),
        "buckets": order.Buckets(BUCKETS),
        "sampled": order.Sampled(range(IMAGES - 1, -1, -1)),
    }


def loader(dataset: FastDataset, ordering: order.Mode, ranks: int, rank: int, workers: int) -> FastLoader:
    transform = [T.ResizeToBucket(BUCKETS)] if isinstance(ordering, order.Buckets) else list(TRANSFORM)
    return FastLoader(
        dataset,
        B // ranks,
        order=ordering,
        seed=SEED,
        transform=transform,
        num_workers=workers,
        rank=rank,
        world_size=ranks,
    )


def part(made: FastLoader, images: torch.Tensor, labels: torch.Tensor) -> Part:
    """What one rank has of a global batch."""
    assert made.last_valid is not None
    rows = torch.nonzero(made.last_valid).ravel().tolist()
    pixels = [hashlib.sha256(images[row].permute(1, 2, 0).contiguous().numpy().tobytes()).hexdigest() for row in rows]
    return [int(labels[row]) for row in rows], pixels


def batches(made: list[FastLoader]) -> Iterator[GlobalBatch]:
    """The global batches from where the ranks' loaders are to the end of the last epoch."""
    while made[0].epoch < EPOCHS:
        for own in zip(*made, strict=True):
            parts = [part(rank, *batch) for rank, batch in zip(made, own, strict=True)]
            yield GlobalBatch(
                tuple(itertools.chain.from_iterable(ids for ids, _ in parts)),
                tuple(itertools.chain.from_iterable(pixels for _, pixels in parts)),
            )


def point(name: str, count: int) -> int:
    """Batches returned before the resume at `name`, in epochs of `count` batches."""
    return {"start": 0, "first": 1, "middle": count // 2, "last": count - 1, "next": count}[name]


def state_after(dataset: FastDataset, ordering: order.Mode, ranks: int, returned: int) -> dict[str, Any]:
    """The state of the last of `ranks` ranks once so many batches were returned, through JSON."""
    made = loader(dataset, ordering, ranks, ranks - 1, 2)
    iterator = iter(made)
    for _ in range(returned):
        next(iterator)
    state: dict[str, Any] = json.loads(json.dumps(made.state_dict()))
    return state


def resumed(
    dataset: FastDataset, ordering: order.Mode, state: dict[str, Any], ranks: int, workers: int
) -> list[GlobalBatch]:
    """What `ranks` ranks of `workers` threads return after `state`."""
    made = [loader(dataset, ordering, ranks, rank, workers) for rank in range(ranks)]
    for each in made:
        each.load_state_dict(state)
    return list(batches(made))


def run() -> list[str]:
    compared = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = datasets(folder)["joined"]
        for mode, ordering in tqdm(modes().items(), desc="orders"):
            whole = list(batches([loader(dataset, ordering, 1, 0, 1)]))
            count = len(whole) // EPOCHS
            for place in POINTS:
                returned = point(place, count)
                for ranks, workers in itertools.product(RANKS, WORKERS):
                    before = RANKS[(RANKS.index(ranks) + 1) % len(RANKS)]  # another world size took the state
                    state = state_after(dataset, ordering, before, returned)
                    if resumed(dataset, ordering, state, ranks, workers) != whole[returned:]:
                        raise Failed(f"{mode}: {ranks} ranks of {workers} workers, resumed at {place}: other batches")
                    compared += len(whole) - returned
        under_torchrun = [compare_torchrun(folder, dataset, processes) for processes in TORCHRUN]
    cases = len(modes()) * len(POINTS) * len(RANKS) * len(WORKERS)
    return [
        f"- {cases} cases: {len(modes())} orders x {len(POINTS)} resume points x ranks {RANKS} x workers {WORKERS}; "
        "each state was taken at another number of ranks than resumed it",
        f"- {compared:,} global batches compared, ids and SHA-256 of pixels in sequence: all equal",
        *under_torchrun,
    ]


def compare_torchrun(folder: Path, dataset: FastDataset, processes: int) -> str:
    """Real processes, which find rank and world size in their environment, resume in the middle."""
    shuffled = order.Shuffled()
    whole = list(batches([loader(dataset, shuffled, 1, 0, 1)]))
    returned = len(whole) // EPOCHS // 2
    state = json.dumps(state_after(dataset, shuffled, 1, returned))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    arguments = ["-m", "tools.torture.determinism", str(folder), state]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, *arguments], check=True, env=environment, capture_output=True, timeout=300)
    ranks = [json.loads((folder / f"{processes}-{rank}.json").read_text()) for rank in range(processes)]
    got = [
        GlobalBatch(
            tuple(itertools.chain.from_iterable(ids for ids, _ in own)),
            tuple(itertools.chain.from_iterable(pixels for _, pixels in own)),
        )
        for own in zip(*ranks, strict=True)
    ]
    if got != whole[returned:]:
        raise Failed(f"{processes} processes under torchrun: other batches")
    return f"- {processes} processes under torchrun (gloo), resumed in the middle of an epoch: {len(got)} batches equal"


def one_rank(folder: Path, state: str) -> None:
    """A process under torchrun: its part of every batch, as JSON."""
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    dataset = FastDataset([folder / "one.lmdb", folder / "other.lmdb"])
    made = FastLoader(dataset, B // ranks, shuffle=True, seed=SEED, transform=list(TRANSFORM), num_workers=2)
    made.load_state_dict(json.loads(state))
    parts: list[Part] = []
    while made.epoch < EPOCHS:
        parts += [part(made, *batch) for batch in made]
    (folder / f"{ranks}-{rank}.json").write_text(json.dumps(parts))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    one_rank(Path(sys.argv[1]), sys.argv[2])
