"""The same global batches, ids and pixels, for any container, store, ranks and workers, after a resume anywhere.

Containers {LMDB, tar, TFRecord, two kinds joined} x ranks {1, 2, 3, 8} x workers {1, 2, 5} x resume points {0, 1,
middle, any, last, next epoch} x every order. Then some orders from an object store x {a cache that is cold, warm, so
small that it evicts all the time, none}, containers in turn, with blocks so small that the sets have some sixty.
Sequences of ids and of SHA-256 over pixels are compared batch by batch, never sorted, with those of the LMDB; states
were taken in another container, at another number of ranks. One process has all ranks; in `stored_nodes` each has its
own.
"""

import hashlib
import itertools
import json
import os
import random
import shutil
import tempfile
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from kernel_images import jpeg
from small_blocks import blocks_of
from tqdm import tqdm
from web_server import web_server

from iofast import FastDataset, FastLoader, open_writer, order
from iofast import transforms as T
from iofast.mirror import cache
from tools.torture import Failed

IMAGES, B, SEED, EPOCHS = 100, 24, 7, 2
RANKS, WORKERS = (1, 2, 3, 8), (1, 2, 5)
POINTS = ("start", "first", "middle", "any", "last", "next")
TRANSFORM = (T.RandomResizedCrop(16), T.RandomHorizontalFlip())
BUCKETS = ((16, 16), (12, 20), (20, 12))
# The containers of the two joined datasets; loaders of one resume states of the one before.
CONTAINERS = {"LMDB": ("lmdb", "lmdb"), "tar": ("tar", "tar"), "TFRecord": ("tfrecord", "tfrecord")}
CONTAINERS["tar and LMDB"] = ("tar", "lmdb")
SHARD_SIZE = 40_000  # bytes: some ten images
STORED = {"sequential": "LMDB", "shuffled": "tar", "blocks": "TFRecord", "grouped": "tar and LMDB"}  # by order
CACHES = {"cold": "1GB", "warm": "1GB", "tiny": "100kB", "no cache": "0"}  # and how many bytes they may take
BLOCK = 8 << 10  # bytes
_EVICTING = {"_AT_A_TIME": 1, "_PAUSE": 0.0}  # of the cache: one block at a time, and without pauses


Part = tuple[list[int], list[str]]  # of one rank: the ids of its valid samples in order, and SHA-256 of their pixels
GlobalBatch = list[tuple[int, str]]  # of all ranks together


def joined(parts: Iterable[Part]) -> GlobalBatch:
    """The global batch of the ranks' parts."""
    return [sample for ids, pixels in parts for sample in zip(ids, pixels, strict=True)]


def datasets(folder: Path) -> Mapping[str, FastDataset]:
    """Two joined datasets in each of `CONTAINERS`: small images of noise, labelled with their numbers."""
    rng = np.random.default_rng(SEED)
    sizes = rng.integers(20, 60, (IMAGES, 2)).tolist()
    images = [jpeg(rng.integers(0, 256, (*size, 3), np.uint8), quality=75) for size in sizes]
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
    drawn = random.Random(count).randrange(count)
    return {"start": 0, "first": 1, "middle": count // 2, "any": drawn, "last": count - 1, "next": count}[name]


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
    compared, lines = 0, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        held = datasets(folder)
        for (mode, ordering), container in tqdm(list(itertools.product(modes().items(), held)), desc="orders"):
            other = held[list(held)[list(held).index(container) - 1]]
            compared += compare(partial(dataset, folder, container), other, ordering, f"{container}, {mode}")
        with blocks_of(BLOCK), web_server(folder) as url:
            lines += [compare_stored(folder, url, kind) for kind in CACHES]
    cases = len(modes()) * len(POINTS) * len(RANKS) * len(WORKERS) * len(CONTAINERS)
    return [
        f"- {cases:,} cases: {', '.join(CONTAINERS)} x {len(modes())} orders x {len(POINTS)} resume points x ranks "
        f"{RANKS} x workers {WORKERS}",
        f"- {compared:,} global batches compared, ids and SHA-256 of pixels in sequence: all equal",
        *lines,
    ]


def compare(opened: Callable[[], FastDataset], other: FastDataset, ordering: order.Mode, what: str) -> int:
    """Compare a dataset in one order, at every point, with all ranks and workers. Return the number of batches.

    States are taken from `other`, at another number of ranks; `other` gives the batches that are wanted.
    """
    whole = list(batches([loader(other, ordering, 1, 0, 1)]))
    compared = 0
    for place, ranks in itertools.product(POINTS, RANKS):
        returned = point(place, len(whole) // EPOCHS)
        state = state_after(other, ordering, RANKS[(RANKS.index(ranks) + 1) % len(RANKS)], returned)
        for workers in WORKERS:
            if resumed(opened(), ordering, state, ranks, workers) != whole[returned:]:
                raise Failed(f"{what}: {ranks} ranks of {workers} workers, resumed at {place}: other batches")
            compared += len(whole) - returned
    return compared


def compare_stored(folder: Path, url: str, kind: str) -> str:
    """Compare the sets below a URL with the local LMDB, through one kind of cache."""
    cached, local = folder / kind, dataset(folder, "LMDB")

    def opened(container: str) -> FastDataset:
        if kind == "cold":
            shutil.rmtree(cached, ignore_errors=True)
        return dataset(url, container)

    environment = {cache.FOLDER: str(cached), cache.SIZE: CACHES[kind]}
    with patch.dict(os.environ, environment), patch.multiple(cache, **_EVICTING):
        if kind == "warm":
            for container in CONTAINERS:
                for _ in loader(dataset(url, container), order.Sequential(), 1, 0, 2):
                    pass
        before, evictions, compared = _sent(url), cache.current().evictions(), 0
        for mode, container in tqdm(STORED.items(), desc=kind):
            compared += compare(partial(opened, container), local, modes()[mode], f"{container}, {kind}, {mode}")
        sent, evicted = _sent(url) - before, cache.current().evictions() - evictions
    line = f"- {kind}: {compared:,} batches equal; {sent:,} bytes were sent, {evicted:,} times blocks were evicted"
    if (kind == "warm") != (sent == 0) or (kind == "tiny") != (evicted > 0):
        raise Failed(f"the cache was not as it should be: {line}")
    return line


def _sent(url: str) -> int:
    """Bytes that the server has sent."""
    with urllib.request.urlopen(f"{url}/-/counts") as answer:
        return int(json.load(answer)["bytes"])
