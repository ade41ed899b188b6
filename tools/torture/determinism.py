"""The same global batches, ids and pixels, for any container, ranks and workers, before and after a resume anywhere.

Containers {LMDB, tar, TFRecord, two kinds joined} x ranks {1, 2, 3, 8} x workers {1, 2, 5} x resume points {0, 1,
middle, last, next epoch} x every order. Sequences of ids and of SHA-256 over pixels are compared batch by batch, never
sorted, with those of the LMDB. One process has all ranks, except in a part under torchrun.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

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
# The containers of the two joined datasets; loaders of one resume states of the one before.
CONTAINERS = {"LMDB": ("lmdb", "lmdb"), "tar": ("tar", "tar"), "TFRecord": ("tfrecord", "tfrecord")}
CONTAINERS["tar and LMDB"] = ("tar", "lmdb")
SHARD_SIZE = 40_000  # bytes: some ten images
PROGRAM = ("-m", "tools.torture.determinism")
TORCHRUN = {2: "tar", 3: "TFRecord"}  # processes, and the container they read; their state is of the LMDB


Part = tuple[list[int], list[str]]  # of one rank: the ids of its valid samples in order, and SHA-256 of their pixels
GlobalBatch = list[tuple[int, str]]  # of all ranks together


def joined(parts: Iterable[Part]) -> GlobalBatch:
    """The global batch of the ranks' parts."""
    return [sample for ids, pixels in parts for sample in zip(ids, pixels, strict=True)]


def datasets(folder: Path) -> Mapping[str, FastDataset]:
    """Two joined datasets in each of `CONTAINERS`: small images of noise, labelled with their numbers."""
    rng = np.random.default_rng(SEED)
    images = []
    for _ in range(IMAGES):
        file, shape = BytesIO(), (int(rng.integers(20, 60)), int(rng.integers(20, 60)), 3)
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(file, "JPEG")
        images.append(file.getvalue())
    numbers = {"one": range(IMAGES - 30), "other": range(IMAGES - 30, IMAGES)}
    for name, suffix in itertools.product(numbers, sorted(set(itertools.chain(*CONTAINERS.values())))):
        size = None if suffix == "lmdb" else SHARD_SIZE
        with open_writer(folder / f"{name}.{suffix}", shard_size=size) as writer:
            for number in numbers[name]:
                writer.write({"jpg": images[number], "cls": number})
    return {name: dataset(folder, name) for name in CONTAINERS}


def dataset(folder: Path | str, container: str) -> FastDataset:
    """The dataset that `datasets` made in a container, in its folder or below a URL."""
    parts = zip(("one", "other"), CONTAINERS[container], strict=True)
    return FastDataset([f"{folder}/{name}.{suffix}" for name, suffix in parts])


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
        "grouped": order.Grouped(6),
        "grouped blocks": order.Grouped(8, order.Blocks(block=4, window=2)),
        "sampled": order.Sampled(range(IMAGES - 1, -1, -1)),
    }


def loader(data: FastDataset, ordering: order.Mode, ranks: int, rank: int, workers: int) -> FastLoader:
    transform = [T.ResizeToBucket(BUCKETS)] if isinstance(ordering, order.Buckets) else list(TRANSFORM)
    place = {"rank": rank, "world_size": ranks, "num_workers": workers}
    return FastLoader(data, B // ranks, order=ordering, seed=SEED, transform=transform, **place)


def part(made: FastLoader, images: torch.Tensor, labels: torch.Tensor) -> Part:
    """The part of one rank in a global batch."""
    assert made.last_valid is not None
    rows = torch.nonzero(made.last_valid).ravel().tolist()
    pixels = [hashlib.sha256(images[row].permute(1, 2, 0).contiguous().numpy().tobytes()).hexdigest() for row in rows]
    return [int(labels[row]) for row in rows], pixels


def batches(made: list[FastLoader]) -> Iterator[GlobalBatch]:
    """The global batches from the place of the ranks' loaders to the end of the last epoch."""
    while made[0].epoch < EPOCHS:
        for own in zip(*made, strict=True):
            yield joined(part(rank, *batch) for rank, batch in zip(made, own, strict=True))


def point(name: str, count: int) -> int:
    """Batches returned before the resume at `name`, in epochs of `count` batches."""
    return {"start": 0, "first": 1, "middle": count // 2, "last": count - 1, "next": count}[name]


def state_after(data: FastDataset, ordering: order.Mode, ranks: int, returned: int) -> dict[str, Any]:
    """The state of the last of `ranks` ranks after `returned` batches, through JSON."""
    made = loader(data, ordering, ranks, ranks - 1, 2)
    iterator = iter(made)
    for _ in range(returned):
        next(iterator)
    state: dict[str, Any] = json.loads(json.dumps(made.state_dict()))
    return state


def resumed(
    data: FastDataset, ordering: order.Mode, state: dict[str, Any], ranks: int, workers: int
) -> list[GlobalBatch]:
    """The batches of `ranks` ranks with `workers` threads each, resumed from `state`."""
    made = [loader(data, ordering, ranks, rank, workers) for rank in range(ranks)]
    for each in made:
        each.load_state_dict(state)
    return list(batches(made))


def run() -> list[str]:
    compared = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        held = datasets(folder)
        for (mode, ordering), container in tqdm(list(itertools.product(modes().items(), held)), desc="orders"):
            compared += compare(held, mode, ordering, container)
        under_torchrun = [compare_torchrun(folder, *processes) for processes in TORCHRUN.items()]
    cases = len(modes()) * len(POINTS) * len(RANKS) * len(WORKERS) * len(CONTAINERS)
    return [
        f"- {cases:,} cases: {', '.join(CONTAINERS)} x {len(modes())} orders x {len(POINTS)} resume points x ranks "
        f"{RANKS} x workers {WORKERS}; each state was taken in another container, at another number of ranks than "
        "resumed it",
        f"- {compared:,} global batches compared, ids and SHA-256 of pixels in sequence: all equal",
        *under_torchrun,
    ]


def compare(held: Mapping[str, FastDataset], mode: str, ordering: order.Mode, container: str) -> int:
    """Compare one container in one order, at every point, with all ranks and workers. Return the number of batches."""
    whole = list(batches([loader(held["LMDB"], ordering, 1, 0, 1)]))
    count, compared, names = len(whole) // EPOCHS, 0, list(held)
    other = held[names[names.index(container) - 1]]
    for place, ranks in itertools.product(POINTS, RANKS):
        returned = point(place, count)
        before = RANKS[(RANKS.index(ranks) + 1) % len(RANKS)]  # another world size took the state
        state = state_after(other, ordering, before, returned)
        for workers in WORKERS:
            if resumed(held[container], ordering, state, ranks, workers) != whole[returned:]:
                where = f"{ranks} ranks of {workers} workers, resumed at {place}"
                raise Failed(f"{container}, {mode}: {where}: other batches than the LMDB gives")
            compared += len(whole) - returned
    return compared


def compare_torchrun(folder: Path, processes: int, container: str, program: Sequence[str] = PROGRAM) -> str:
    """Real processes take rank and world size from their environment and resume in the middle of an epoch.

    They run `program`, by default on the containers in the folder.
    """
    shuffled, data = order.Shuffled(), dataset(folder, "LMDB")
    whole = list(batches([loader(data, shuffled, 1, 0, 1)]))
    returned = len(whole) // EPOCHS // 2
    state = json.dumps(state_after(data, shuffled, 1, returned))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    arguments = [str(folder), container, state]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, *program, *arguments], check=True, env=environment, capture_output=True, timeout=300)
    ranks = [json.loads((folder / f"{processes}-{rank}.json").read_text()) for rank in range(processes)]
    got = [joined(parts) for parts in zip(*ranks, strict=True)]
    if got != whole[returned:]:
        raise Failed(f"{processes} processes under torchrun on {container}: other batches")
    return (
        f"- {processes} processes under torchrun (gloo) on {container}, resumed in the middle of an epoch of the LMDB: "
        f"{len(got)} batches equal"
    )


def one_rank(folder: Path, container: str, state: str, place: str = "") -> None:
    """In a process under torchrun: write its part of every batch as JSON. `place` has the containers, or the folder."""
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    data = dataset(place or folder, container)
    made = FastLoader(data, B // ranks, shuffle=True, seed=SEED, transform=list(TRANSFORM), num_workers=2)
    made.load_state_dict(json.loads(state))
    parts: list[Part] = []
    while made.epoch < EPOCHS:
        parts += [part(made, *batch) for batch in made]
    (folder / f"{ranks}-{rank}.json").write_text(json.dumps(parts))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    one_rank(Path(sys.argv[1]), *sys.argv[2:])
