"""Eight nodes read a stored set once per epoch together, and four of them go on exactly when the others are lost.

A node is a cache, a web server that stands for its link to the store, and one rank under torchrun (gloo), all on this
machine. Four nodes are killed in mid-epoch; four resume from the saved state with twice the batch per rank. All
batches, ids and pixels in sequence, are compared with those of one process on the file.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from kernel_images import jpeg
from object_store import free_port
from small_blocks import BLOCK, blocks_of
from torch import distributed
from web_server import Sent, web_server

from iofast import FastDataset, FastLoader, open_writer, order
from iofast import transforms as T
from tools.processes import kill
from tools.torture import ROOT, Failed
from tools.torture.determinism import GlobalBatch, joined, part

IMAGES, SIDE, SHARD = 24_011, 44, 8 << 20
NODES, GROUPS, BATCH, SEED = 8, 64, 512, 11
# bytes: 1/64 of the usual, as the blocks of 64 KiB are, so that a set of 111 MB is like one of 7 GB
SIZES = {"prefetch.stored_readahead.BUDGET": 4 << 20, "prefetch.stored_readahead.EARLY": 512 << 10}
RATE, LATENCY = 100, 0.005  # MB/s of a node's server; seconds until it answers
TRANSFORM = (T.RandomResizedCrop(16), T.RandomHorizontalFlip())
ORDERS: Mapping[str, order.Mode] = {
    "Grouped(64, Blocks(64, 4))": order.Grouped(GROUPS, order.Blocks(64, 4)),
    "Blocks(64, 4)": order.Blocks(64, 4),
    "Shuffled()": order.Shuffled(),
}
GROUPED, *OTHERS = ORDERS
EPOCHS, COUNT = 4, IMAGES // BATCH  # epochs, and batches in one: a short last one is left out
KILLED_AT = 2, 12  # epoch and batch
LOST, LEFT = [1, 3, 5, 7], [0, 2, 4, 6]  # the ranges of each node that is lost go to its neighbour
_TIME = 300.0  # seconds of a job at most


@dataclass(frozen=True)
class Site:
    """The nodes' URLs, a folder for caches and results, and the bytes of the set."""

    urls: list[str]
    folder: Path
    size: int

    @property
    def caches(self) -> Path:
        """A folder with the nodes' caches."""
        return self.folder / "caches"

    def cached(self) -> list[float]:
        """The share of the set that is in the cache of each node."""
        folders = [self.caches / str(node) for node in range(NODES)]
        return [sum(path.stat().st_blocks * 512 for path in each.glob("*.copy")) / self.size for each in folders]

    def times(self, answers: Iterable[Sent]) -> float:
        """How many times the set is in the bytes of shards; each node reads manifest and index besides."""
        return sum(each.stop - each.start for each in answers if each.path.endswith(".tar")) / self.size


def sent(url: str) -> list[Sent]:
    """All that a node's server has sent so far."""
    with urllib.request.urlopen(f"{url}/-/sent") as answer:
        return [Sent(*each) for each in json.load(answer)]


class Job:
    """One `torchrun` on some of the nodes, from a saved state if one is given; rank r is on the r-th of them."""

    def __init__(self, site: Site, nodes: list[int], mode: str, epochs: int, state: str = "") -> None:
        self.site, self.nodes, self.port = site, nodes, free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="job-", dir=site.folder))
        self.state = self.folder / "state"  # rank 0 saves it after each batch
        options = [mode, str(epochs), str(self.folder), state]
        self._processes = {node: self._start(node, options) for node in nodes}

    def _start(self, node: int, options: list[str]) -> psutil.Popen:
        words = [f"--nnodes={len(self.nodes)}", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=torture"]
        words += [f"--rdzv-endpoint=127.0.0.1:{self.port}", f"--rdzv-conf=is_host={node == self.nodes[0]}"]
        words += ["--local-addr=127.0.0.1", "-m", "tools.torture.stored_nodes", self.site.urls[node], *options]
        variables = {"IOFAST_CACHE": str(self.site.caches / str(node)), "IOFAST_ALLOW_HTTP": "true"}
        variables |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "torch.distributed.run", *words]
        with (self.folder / f"log-{node}").open("wb") as log:
            return psutil.Popen(command, env=os.environ | variables, cwd=ROOT, stdout=log, stderr=log)

    def returned(self) -> int:
        """Batches that were returned before the saved state, in all epochs."""
        if not self.state.exists():
            return 0
        state: dict[str, int] = json.loads(self.state.read_text())
        return state["epoch"] * COUNT + state["batch"]

    def kill(self, lost: list[int], returned: int) -> None:
        """Kill all processes of some nodes after so many batches. The ranks of the others must fail, and not hang."""
        end = time.monotonic() + _TIME
        while self.returned() < returned and time.monotonic() < end:
            if any(process.poll() is not None for process in self._processes.values()):
                self.end()
            time.sleep(0.01)
        for node in lost:
            kill(self._processes[node])
        for node, process in self._processes.items():
            if self._status(node, process) == 0:
                raise Failed(f"node {node} ended as if nothing had happened when others were killed")

    def end(self) -> None:
        """Wait until all nodes have ended without an error."""
        for node, process in self._processes.items():
            if self._status(node, process):
                raise Failed(f"node {node} failed: {(self.folder / f'log-{node}').read_text()[-2000:]}")

    def _status(self, node: int, process: psutil.Popen) -> int:
        try:
            return int(process.wait(_TIME))
        except psutil.TimeoutExpired:
            for each in self._processes.values():
                kill(each)
            raise Failed(f"node {node} hangs: {(self.folder / f'log-{node}').read_text()[-2000:]}") from None

    def batches(self) -> list[GlobalBatch]:
        """The global batches that all ranks have returned. Raises `Failed` for batches of different sizes."""
        files = [(self.folder / f"{rank}.jsonl").read_text().splitlines() for rank in range(len(self.nodes))]
        got = []
        ranks = [[json.loads(line) for line in lines] for lines in files]
        for number, batches in enumerate(zip(*ranks, strict=False)):  # when it is killed, a rank may have one more
            sizes = [size for size, _, _ in batches]
            if len(set(sizes)) > 1:
                raise Failed(f"batch {number} has {sizes} samples on the nodes")
            got.append(joined((ids, pixels) for _, ids, pixels in batches))
        return got

    def epoch(self, number: int) -> dict[int, list[Sent]]:
        """What each node was sent in the epoch that ended as the `number`th of this job."""
        found = {}
        for rank, node in enumerate(self.nodes):
            marks = [int(line) for line in (self.folder / f"marks-{rank}").read_text().split()]
            found[node] = sent(self.site.urls[node])[marks[number] : marks[number + 1]]
        return found

    def times(self, number: int) -> float:
        """How many times all nodes together were sent the set in this epoch."""
        return sum(map(self.site.times, self.epoch(number).values()))


def equal(got: list[GlobalBatch], wanted: list[GlobalBatch], what: str) -> int:
    """Compare batches and return their number. Raises `Failed`."""
    if len(got) != len(wanted):
        raise Failed(f"{what}: expected {len(wanted)} global batches, found {len(got)}")
    for number, (own, other) in enumerate(zip(got, wanted, strict=True)):
        if own != other:
            raise Failed(f"{what}: global batch {number} differs from that of one process on the file")
    return len(got)


def at_most(found: float, most: float, what: str) -> None:
    """Raise `Failed` for more."""
    if found > most:
        raise Failed(f"{what}: expected at most {most:.3f} of the set, found {found:.3f}")


def make(path: Path) -> int:
    """Pack images of noise, labelled with their numbers. Returns the bytes of the shards."""
    rng = np.random.default_rng(SEED)
    with open_writer(path, shard_size=SHARD) as writer:
        for number in range(IMAGES):
            pixels = rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
            writer.write({"jpg": jpeg(pixels, quality=90), "cls": number})
    return sum(shard.stat().st_size for shard in path.parent.glob("*.tar"))


def loader(path: str | Path, mode: str, rank: int = 0, ranks: int = 1) -> FastLoader:
    options: dict[str, Any] = {"rank": rank, "world_size": ranks, "num_workers": 1, "seed": SEED, "drop_last": True}
    return FastLoader(FastDataset(path), BATCH // ranks, order=ORDERS[mode], transform=list(TRANSFORM), **options)


def whole(path: Path, mode: str, epochs: int) -> list[GlobalBatch]:
    """The global batches of one process that reads the file."""
    made = loader(path, mode)
    return [joined([part(made, *batch)]) for _ in range(epochs) for batch in made]


def lose_nodes(site: Site, wanted: list[GlobalBatch]) -> list[str]:
    """Two whole epochs of all nodes, four of which are lost in the third; then four resume, in two ways."""
    job = Job(site, [*range(NODES)], GROUPED, EPOCHS)
    job.kill(LOST, KILLED_AT[0] * COUNT + KILLED_AT[1])
    returned = job.returned()
    equal(job.batches()[:returned], wanted[:returned], f"{NODES} nodes")
    first, second, cached = job.times(0), job.times(1), site.cached()
    at_most(first, 1.05, "the first epoch of all nodes together")
    at_most(second, 0.001, "the second epoch of all nodes together")
    at_most(max(cached), 1.1 / NODES, "the cache of a node")
    findings = [
        f"- {NODES} nodes, `{GROUPED}`: {returned} global batches equal; the set was sent {first:.3f} times in the "
        f"first epoch, {second:.3f} in the second; a node's cache has {min(cached):.3f} to {max(cached):.3f} of it",
        f"- nodes {LOST} killed after batch {returned % COUNT} of {COUNT} in the third epoch: the ranks of the others "
        "ended with an error",
    ]
    had, saved = [blocks(sent(url)) for url in site.urls], site.caches.rename(site.folder / "saved")
    for nodes, most in ((LEFT, 0.53), ([*range(NODES // 2)], 1.0)):
        subprocess.run(["cp", "-a", "--sparse=always", saved, site.caches], check=True)
        resumed = Job(site, nodes, GROUPED, EPOCHS, str(job.state))
        findings.append(check_resumed(resumed, had, wanted[returned:], most))
        shutil.rmtree(site.caches)
    return findings


def blocks(answers: Iterable[Sent]) -> set[tuple[str, int]]:
    """The blocks of which something was sent."""
    return {(each.path, each.start // BLOCK) for each in answers}


def check_resumed(job: Job, had: list[set[tuple[str, int]]], wanted: list[GlobalBatch], most: float) -> str:
    """A resumed job may be sent at most so much of the set in the rest of its epoch, and nothing that its nodes had."""
    job.end()
    compared = equal(job.batches(), wanted, f"nodes {job.nodes} resumed")
    rest, last = job.times(0), job.times(1)
    again = sum(
        job.site.times(each for each in answers if (each.path, each.start // BLOCK) in had[node])
        for node, answers in job.epoch(0).items()
    )
    at_most(rest, most, "the rest of the epoch")
    at_most(again, 0.001, "what the nodes had, in the rest of the epoch")
    at_most(last, 0.001, "the epoch after a resume")
    return (
        f"- nodes {job.nodes} resumed with {BATCH // len(job.nodes)} samples per rank: the other {compared} global "
        f"batches equal; {rest:.3f} of the set was sent in the rest of the epoch, {again:.3f} of it in blocks that the "
        f"node had, and {last:.3f} in the epoch after it"
    )


def compare(site: Site, path: Path, mode: str) -> str:
    """Two epochs in another order, from empty caches."""
    shutil.rmtree(site.caches, ignore_errors=True)
    job = Job(site, [*range(NODES)], mode, 2)
    job.end()
    compared = equal(job.batches(), whole(path, mode, 2), mode)
    return f"| `{mode}` | {compared} | {job.times(0):.3f} | {job.times(1):.3f} | {max(site.cached()):.3f} |"


def run() -> list[str]:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        (folder := Path(name) / "site").mkdir()
        path, size = folder / "train.tar", make(folder / "train.tar")
        urls = [stack.enter_context(web_server(folder, LATENCY, RATE * 1e6)) for _ in range(NODES)]
        site = Site(urls, Path(name), size)
        findings = lose_nodes(site, whole(path, GROUPED, EPOCHS))
        rows = [compare(site, path, mode) for mode in OTHERS]
    return [
        f"- {IMAGES:,} JPEGs of noise in {size / 1e6:.0f} MB of tar shards, batches of {BATCH}, blocks of "
        f"{BLOCK >> 10} KiB; {NODES} nodes, each with its cache and a server of {RATE} MB/s that waits "
        f"{LATENCY * 1e3:.0f} ms before each answer",
        *findings,
        "- other orders from empty caches, of all nodes together (bytes of shards for one of the set):",
        "",
        "| order | global batches equal | first epoch | second epoch | largest cache |",
        "|---|--:|--:|--:|--:|",
        *rows,
    ]


def one_rank(url: str, mode: str, epochs: int, folder: Path, state: str) -> None:
    """In a process under torchrun: write each batch down, with a collective operation in place of the gradients'."""
    for name, value in SIZES.items():
        pytest.MonkeyPatch().setattr(f"iofast.{name}", value)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    with (folder / f"{rank}.jsonl").open("w") as file, (folder / f"marks-{rank}").open("w") as marks:
        print(len(sent(url)), file=marks, flush=True)
        made = loader(f"{url}/train.tar", mode, rank, ranks)
        if state:
            made.load_state_dict(json.loads(Path(state).read_text()))
        while made.epoch < epochs:
            for images, labels in made:
                print(json.dumps([len(images), *part(made, images, labels)]), file=file, flush=True)
                distributed.all_reduce(torch.zeros(1))
                if rank == 0:
                    (folder / "new").write_text(json.dumps(made.state_dict()))
                    (folder / "new").replace(folder / "state")
            distributed.barrier()
            print(len(sent(url)), file=marks, flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    with blocks_of(BLOCK):
        one_rank(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
