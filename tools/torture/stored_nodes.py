"""Eight nodes read a stored set once per epoch together, and four of them go on exactly when the others are lost.

Each node is a network namespace with a cache and a link of its own, and runs one rank under torchrun (gloo). One web
server counts the bytes it sends to each node. Four nodes are killed in mid-epoch; four resume from the saved state with
twice the batch per rank. All batches, ids and pixels in sequence, are compared with those of one process on the file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_blocks import BLOCK, blocks_of
from torch import distributed
from web_server import Sent, web_server

from iofast import FastDataset, FastLoader, open_writer, order
from iofast import transforms as T
from tools.torture import ROOT, Failed, NotTried
from tools.torture._network import inside, kill, limit, namespaces
from tools.torture.determinism import GlobalBatch, joined, part

IMAGES, SIDE, SHARD = 24_011, 44, 8 << 20
NODES, GROUPS, BATCH, SEED = 8, 64, 512, 11
# bytes: 1/64 of the usual, as the blocks of 64 KiB are, so that a set of 111 MB is like one of 7 GB
SIZES = {"prefetch.stored_readahead.BUDGET": 4 << 20, "prefetch.stored_readahead.EARLY": 512 << 10}
SIZES["remote.store.SMALL"] = 16 << 10
RATE, LATENCY = 100, 0.005  # MB/s of a node's link; seconds until the server answers
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
_NETWORK, _PORT = "10.213.8", 29_400
_TIME = 300.0  # seconds of a job at most


@dataclass(frozen=True)
class Site:
    """The namespaces of the nodes, the server's URL, a folder for caches and results, and the bytes of the set."""

    names: list[str]
    url: str
    folder: Path
    size: int

    @property
    def caches(self) -> Path:
        """A folder with the nodes' caches."""
        return self.folder / "caches"

    def sent(self) -> list[Sent]:
        """All that the server has sent so far."""
        with urllib.request.urlopen(f"{self.url}/-/sent") as answer:
            return [Sent(*each) for each in json.load(answer)]

    def cached(self) -> list[float]:
        """The share of the set that is in the cache of each node."""
        folders = [self.caches / str(node) for node in range(NODES)]
        return [sum(path.stat().st_blocks * 512 for path in each.glob("*.copy")) / self.size for each in folders]

    def times(self, sent: list[Sent]) -> float:
        """How many times the set is in the bytes of shards that were sent."""
        return of_shards(sent) / self.size


class Job:
    """One `torchrun` on some of the nodes, from a saved state if one is given; rank r is on the r-th of them."""

    def __init__(self, site: Site, nodes: list[int], mode: str, epochs: int, state: str = "") -> None:
        self.site, self.nodes = site, nodes
        self.folder = Path(tempfile.mkdtemp(prefix="job-", dir=site.folder))
        self.before = site.sent()
        options = [f"{site.url}/train.tar", mode, str(epochs), str(self.folder), state]
        self._processes = {node: self._start(node, options) for node in nodes}

    def _start(self, node: int, options: list[str]) -> subprocess.Popen[bytes]:
        first = self.nodes[0]
        words = [f"--nnodes={len(self.nodes)}", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=torture"]
        words += [f"--rdzv-endpoint={_NETWORK}.{first + 1}:{_PORT}", f"--rdzv-conf=is_host={node == first}"]
        words += [f"--local-addr={_NETWORK}.{node + 1}", "-m", "tools.torture.stored_nodes", *options]
        variables = {"IOFAST_CACHE": str(self.site.caches / str(node)), "IOFAST_ALLOW_HTTP": "true"}
        variables |= {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        command = ["ip", "netns", "exec", self.site.names[node], sys.executable, "-m", "torch.distributed.run", *words]
        with (self.folder / f"log-{node}").open("wb") as log:
            return subprocess.Popen(command, env=os.environ | variables, cwd=ROOT, stdout=log, stderr=log)

    @property
    def state(self) -> Path:
        """The state that rank 0 saves after each batch."""
        return self.folder / "state"

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
            kill(inside(self.site.names[node]))
        for node, process in self._processes.items():
            if self._status(node, process) == 0:
                raise Failed(f"node {node} ended as if nothing had happened when others were killed")

    def end(self) -> None:
        """Wait until all nodes have ended without an error."""
        for node, process in self._processes.items():
            if self._status(node, process):
                raise Failed(f"node {node} failed: {(self.folder / f'log-{node}').read_text()[-2000:]}")

    def _status(self, node: int, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(_TIME)
        except subprocess.TimeoutExpired:
            for each in self.nodes:
                kill(inside(self.site.names[each]))
            raise Failed(f"node {node} hangs: {(self.folder / f'log-{node}').read_text()[-2000:]}") from None

    def batches(self) -> list[GlobalBatch]:
        """The global batches that all ranks have returned. Raises `Failed` for batches of different sizes."""
        files = [(self.folder / f"{rank}.jsonl").read_text().splitlines() for rank in range(len(self.nodes))]
        ranks = [[json.loads(line) for line in lines] for lines in files]
        got = []
        for number, batches in enumerate(zip(*ranks, strict=False)):  # when it is killed, a rank may have one more
            sizes = [size for size, _, _ in batches]
            if len(set(sizes)) > 1:
                raise Failed(f"batch {number} has {sizes} samples on the nodes")
            got.append(joined((ids, pixels) for _, ids, pixels in batches))
        return got

    @cached_property
    def epochs(self) -> list[list[Sent]]:
        """What the server sent in each epoch that ended."""
        sent, marks = self.site.sent(), [len(self.before)]
        if (path := self.folder / "marks").exists():
            marks += [int(line) for line in path.read_text().split()]
        return [sent[start:stop] for start, stop in pairwise(marks)]


def of_shards(sent: list[Sent]) -> int:
    """Bytes of shards. The others are the manifest and the index, which every node reads."""
    return sum(each.stop - each.start for each in sent if each.path.endswith(".tar"))


def again(before: list[Sent], now: list[Sent]) -> int:
    """Bytes of shards in blocks of which the same node had been sent something before."""
    blocks = {(each.client, each.path, each.start // BLOCK) for each in before}
    return of_shards([each for each in now if (each.client, each.path, each.start // BLOCK) in blocks])


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
            file = BytesIO()
            Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)).save(file, "JPEG", quality=90)
            writer.write({"jpg": file.getvalue(), "cls": number})
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
    first, second = map(site.times, job.epochs)
    index, cached = sum(each.stop - each.start for each in job.epochs[0]) - of_shards(job.epochs[0]), site.cached()
    at_most(first, 1.05, "the first epoch of all nodes together")
    at_most(second, 0.001, "the second epoch of all nodes together")
    at_most(max(cached), 1.1 / NODES, "the cache of a node")
    findings = [
        f"- {NODES} nodes, `{GROUPED}`: {returned} global batches equal; the server sent {first:.3f} of the set in the "
        f"first epoch and {second:.3f} in the second; a node's cache has {min(cached):.3f} to {max(cached):.3f} of it",
        f"- besides, each node read the index and the manifest: {index / NODES / site.size:.4f} of the set",
        f"- nodes {LOST} killed after batch {returned % COUNT} of {COUNT} in the third epoch: the ranks of the others "
        "ended with an error",
    ]
    had, saved = site.sent(), site.caches.rename(site.folder / "saved")
    for nodes, most in ((LEFT, 0.53), ([*range(NODES // 2)], 1.0)):
        subprocess.run(["cp", "-a", "--sparse=always", saved, site.caches], check=True)
        resumed = Job(site, nodes, GROUPED, EPOCHS, str(job.state))
        findings.append(check_resumed(resumed, had, wanted[returned:], most))
        shutil.rmtree(site.caches)
    return findings


def check_resumed(job: Job, had: list[Sent], wanted: list[GlobalBatch], most: float) -> str:
    """A resumed job may be sent at most so much of the set in the rest of its epoch, and nothing that its nodes had."""
    job.end()
    nodes, site = job.nodes, job.site
    compared = equal(job.batches(), wanted, f"nodes {nodes} resumed")
    rest, last = map(site.times, job.epochs)
    repeated = again(had, job.epochs[0]) / site.size
    at_most(rest, most, "the rest of the epoch")
    at_most(repeated, 0.001, "what the nodes had, in the rest of the epoch")
    at_most(last, 0.001, "the epoch after a resume")
    return (
        f"- nodes {nodes} resumed with {BATCH // len(nodes)} samples per rank: the other {compared} global batches "
        f"equal; the server sent {rest:.3f} of the set in the rest of the epoch, {repeated:.3f} of it in blocks that "
        f"the node had, and {last:.3f} in the epoch after it"
    )


def compare(site: Site, path: Path, mode: str) -> str:
    """Two epochs in another order, from empty caches."""
    shutil.rmtree(site.caches, ignore_errors=True)
    job = Job(site, [*range(NODES)], mode, 2)
    job.end()
    compared = equal(job.batches(), whole(path, mode, 2), mode)
    first, second = map(site.times, job.epochs)
    return f"| `{mode}` | {compared} | {first:.3f} | {second:.3f} | {max(site.cached()):.3f} |"


def run() -> list[str]:
    with tempfile.TemporaryDirectory() as name, namespaces(NODES, _NETWORK) as names:
        if names is None:
            raise NotTried("it needs network namespaces, which only root may make, and the command ip")
        (folder := Path(name) / "site").mkdir()
        path, size = folder / "train.tar", make(folder / "train.tar")
        links = f"{RATE} MB/s (tbf)" if limit(NODES, RATE) else "no limit (no tbf in this kernel)"
        with web_server(folder, LATENCY, address=f"{_NETWORK}.254") as url:
            site = Site(names, url, Path(name), size)
            findings = lose_nodes(site, whole(path, GROUPED, EPOCHS))
            rows = [compare(site, path, mode) for mode in OTHERS]
    return [
        f"- {IMAGES:,} JPEGs of noise in {size / 1e6:.0f} MB of tar shards, batches of {BATCH}, blocks of "
        f"{BLOCK >> 10} KiB; {NODES} network namespaces, each with its cache and a link of {links}; the server waits "
        f"{LATENCY * 1e3:.0f} ms before each answer",
        *findings,
        "- other orders from empty caches, of all nodes together (bytes of shards for one of the set):",
        "",
        "| order | global batches equal | first epoch | second epoch | largest cache |",
        "|---|--:|--:|--:|--:|",
        *rows,
    ]


def one_rank(path: str, mode: str, epochs: int, folder: Path, state: str) -> None:
    """In a process under torchrun: write each batch down, with a collective operation in place of the gradients'."""
    for name, value in SIZES.items():
        pytest.MonkeyPatch().setattr(f"iofast.{name}", value)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    made = loader(path, mode, rank, ranks)
    if state:
        made.load_state_dict(json.loads(Path(state).read_text()))
    with (folder / f"{rank}.jsonl").open("w") as file:
        while made.epoch < epochs:
            for images, labels in made:
                print(json.dumps([len(images), *part(made, images, labels)]), file=file, flush=True)
                distributed.all_reduce(torch.zeros(1))
                if rank == 0:
                    save(made.state_dict(), folder / "state")
            end_epoch(path, folder, rank)
    distributed.destroy_process_group()


def save(state: dict[str, Any], path: Path) -> None:
    path.with_suffix(".new").write_text(json.dumps(state))
    path.with_suffix(".new").replace(path)


def end_epoch(path: str, folder: Path, rank: int) -> None:
    """Note how many answers the server has sent when all ranks are at the end of an epoch."""
    distributed.barrier()
    if rank == 0:
        with (
            urllib.request.urlopen(f"{path.rpartition('/')[0]}/-/sent") as answer,
            (folder / "marks").open("a") as file,
        ):
            print(len(json.load(answer)), file=file)
    distributed.barrier()


if __name__ == "__main__":
    with blocks_of(BLOCK):
        one_rank(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
