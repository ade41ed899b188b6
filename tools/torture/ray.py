"""A pack on Ray whose nodes, processes and driver are lost: the bytes are those of a plain pack.

On a cluster of three nodes on this machine, each round packs 40 shards: a node is killed with all its processes, a
process of Ray in the middle of a shard, or the driver, which then starts again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil

from tools import sample_photographs
from tools.processes import kill
from tools.torture import Failed, _packs
from tools.torture._packs import Case

SHARDS = 40
RECORDS = 25  # of a shard
ROUNDS = ("node and worker", "driver", "driver and node")  # for each kind of container
NODES = 3
_TIME = 300.0  # seconds of a run at most


class Run:
    """One `iofast pack --on ray` into `folder`."""

    def __init__(self, case: Case, folder: Path, address: str) -> None:
        self.case, self.folder = case, folder
        self.partial = folder / f"{case.name}.partial"
        records = () if case.name.endswith(".lmdb") else ("--shard-records", str(RECORDS))
        paths = (str(case.images), str(folder / case.name))
        words = ("pack", *paths, "--resize", "128", "--max-errors", "0", *records, "--json", "--quiet")
        pack = [sys.executable, "-m", "iofast", *words]
        if not records:  # without shards so few images would be one part
            subprocess.run([*pack, "--part", f"1/{SHARDS}"], check=True, stdout=subprocess.DEVNULL)
        self.command = [*pack, "--on", "ray"]
        self.environment = {**os.environ, "RAY_ADDRESS": address}
        self.start()

    def start(self) -> None:
        """Start the driver."""
        pipe = subprocess.PIPE
        self.driver = psutil.Popen(self.command, stdout=pipe, stderr=pipe, text=True, env=self.environment)

    def parts(self) -> int:
        """The number of parts that are packed: each is one section."""
        return len([*self.partial.glob("rows-*"), *self.partial.glob("part-*/rows-*")])

    def wait_for(self, parts: int) -> None:
        """Wait until so many parts are packed."""
        end = time.monotonic() + _TIME
        while self.parts() < parts:
            if self.driver.poll() is not None or time.monotonic() > end:
                raise Failed(f"{self.case.name}: the driver ended or hangs: {self.driver.communicate()}")
            time.sleep(0.01)

    def packing(self, tries: int = 500) -> list[psutil.Process]:
        """The processes of Ray that are in the middle of a part: they have its lock, and have begun its section."""
        for _ in range(tries):
            found = []
            for lock in self.partial.glob("lock-*"):
                part = int(lock.name.removeprefix("lock-"))
                begun = [*self.partial.glob(f"shard-{part - 1:06d}.*"), *self.partial.glob(f"part-{part:06d}/*.lmdb")]
                rows = [*self.partial.glob(f"rows-{part - 1:06d}"), *self.partial.glob(f"part-{part:06d}/rows-*")]
                with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
                    if any(path.stat().st_size for path in begun) and not rows:
                        found.append(psutil.Process(int(lock.read_text())))
            if found:
                return found
            time.sleep(0.005)
        raise Failed(f"{self.case.name}: no process was found in the middle of a part")

    def kill_driver(self) -> None:
        """Kill the driver and start it again."""
        self.driver.send_signal(signal.SIGKILL)
        self.driver.communicate()
        self.start()

    def end(self, wanted: dict[str, str], when: str) -> int:
        """Wait for the driver and check the files. Returns the images that an earlier driver had done."""
        try:
            out, error = self.driver.communicate(timeout=_TIME)
        except subprocess.TimeoutExpired:
            raise Failed(f"{when}: the driver did not end within {_TIME:.0f} s") from None
        if self.driver.returncode:
            raise Failed(f"{when}: exit status {self.driver.returncode}: {error.strip()}")
        self.case.check(self.folder, wanted, when)
        if not out.startswith("{"):
            raise Failed(f"{when}: found {out!r} {error!r} on the standard output")
        return int(json.loads(out)["resumed"])


class Rounds:
    """The images, the files of plain packs, and what was killed."""

    def __init__(self, folder: Path, shards: int = SHARDS, names: tuple[str, ...] = _packs.NAMES) -> None:
        self.folder, self.counts, self.shards = folder, Counter[str](), shards
        images = folder / "images"
        found = sample_photographs.make(images, per_class=8, val=2, quiet=True)
        (source := folder / "source").mkdir()
        for number in range(shards * RECORDS):
            (source / f"{number:05d}.jpg").symlink_to(found[number % len(found)])
        self.cases = [Case(name, source) for name in names]
        self.wanted: dict[Case, dict[str, str]] = {}
        for case in self.cases:
            whole = folder / f"plain-{case.name}"
            whole.mkdir()
            shard = [] if case.name.endswith(".lmdb") else ["--shard-records", str(RECORDS)]
            command = [sys.executable, "-m", "iofast", "pack", str(source), str(whole / case.name), *shard]
            subprocess.run([*command, "--resize", "128", "--quiet"], check=True)
            self.wanted[case] = _packs.digests(whole)

    def target(self) -> Path:
        """An empty folder."""
        folder = self.folder / "target"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def kill(self, case: Case, kind: str, cluster: Cluster, chance: random.Random) -> None:
        """One round on a cluster of three nodes."""
        run = Run(case, self.target(), cluster.address)
        for number, what in enumerate(kind.split(" and ")):
            run.wait_for(chance.randint(2, self.shards // 4) + number * self.shards // 4)
            if what == "node":
                cluster.kill_node()
            elif what == "worker":
                chance.choice(run.packing()).send_signal(signal.SIGKILL)
            else:
                run.kill_driver()
            self.counts[what] += 1
        resumed = run.end(self.wanted[case], f"{case.name}, {kind}")
        self.counts["resumed"] += "driver" in kind and resumed > RECORDS
        self.counts["rounds"] += 1


class Cluster:
    """Three nodes of `ray.cluster_utils.Cluster`; the first one stays."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as Nodes

        one = {"num_cpus": 1, "include_dashboard": False}
        self._nodes = Nodes(initialize_head=True, head_node_args=one)
        self.address = str(self._nodes.address)
        self._others = [self._nodes.add_node(num_cpus=1) for _ in range(1, NODES)]

    def kill_node(self) -> None:
        """Kill a node with all its processes at once, and add another."""
        node = self._others.pop(0)
        kill(psutil.Process(node.all_processes["raylet"][0].process.pid))
        self._others.append(self._nodes.add_node(num_cpus=1))

    def shutdown(self) -> None:
        """End all processes."""
        self._nodes.shutdown()


@contextlib.contextmanager
def own_folders() -> Iterator[None]:
    """Give Ray a folder for its files; its processes must be gone at the end."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        os.environ |= {"RAY_TMPDIR": folder, "HOME": folder, "RAY_AUTH_MODE": "disabled"}
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
            _, left = psutil.wait_procs([each for each in psutil.process_iter() if _is_in(folder, each)], 10)
            for each in left:
                kill(each)
            if left and sys.exc_info()[0] is None:
                raise Failed(f"{len(left)} processes of Ray or iofast are left")


def _is_in(folder: str, process: psutil.Process) -> bool:
    try:
        return process.environ().get("RAY_TMPDIR") == folder and process.pid != os.getpid()
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return False


def kills(rounds: Rounds, kinds: tuple[str, ...]) -> None:
    """All rounds on one cluster."""
    chance = random.Random("ray")
    cluster = Cluster()
    try:
        for case in rounds.cases:
            for kind in kinds:
                rounds.kill(case, kind, cluster, chance)
    finally:
        cluster.shutdown()


def run() -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        rounds = Rounds(Path(name))
        with own_folders():
            kills(rounds, ROUNDS)
    counts = rounds.counts
    return [
        f"- {counts['rounds']} rounds over {', '.join(_packs.NAMES)}, {SHARDS} shards of {RECORDS} images each, on 3 "
        f"nodes of one processor (`ray.cluster_utils.Cluster`); killed with SIGKILL: a node with all its processes "
        f"{counts['node']} times, a process of Ray in the middle of a part {counts['worker']} times, the driver "
        f"{counts['driver']} times; {counts['resumed']} drivers that were started again found parts that were packed",
        "- every final file had the bytes of a plain `iofast pack`; no process and no file was left",
    ]
