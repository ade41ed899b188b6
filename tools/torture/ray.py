"""A pack on Ray whose nodes, processes and driver are lost: the bytes are those of a plain pack.

On a cluster of three nodes on this machine, each round packs 40 shards: a node is killed with all its processes, a
process of Ray in the middle of a shard, or the driver, which then starts again.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
from ray_here import own_ray_folders

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
        self.case, self.folder, self.partial = case, folder, folder / f"{case.name}.partial"
        pack = case.command(folder, "--json", "--quiet")
        if case.name.endswith(".lmdb"):  # without shards so few images would be one part
            subprocess.run([*pack, "--part", f"1/{SHARDS}"], check=True, stdout=subprocess.DEVNULL)
        self.command, self.environment = [*pack, "--on", "ray"], {**os.environ, "RAY_ADDRESS": address}
        self.start()

    def start(self) -> None:
        """Start the driver."""
        pipe = subprocess.PIPE
        self.driver = psutil.Popen(self.command, stdout=pipe, stderr=pipe, text=True, env=self.environment)

    def wait_for(self, parts: int) -> None:
        """Wait until so many parts are packed: each is one section."""
        end = time.monotonic() + _TIME
        while len([*self.partial.glob("rows-*"), *self.partial.glob("part-*/rows-*")]) < parts:
            if self.driver.poll() is not None or time.monotonic() > end:
                raise Failed(f"{self.case.name}: the driver ended or hangs: {self.driver.communicate()}")
            time.sleep(0.01)

    def packing(self) -> psutil.Process:
        """A process of Ray in the middle of a part: it has the part's lock, and has begun its section."""
        for _ in range(500):
            for lock in self.partial.glob("lock-*"):
                part = int(lock.name.removeprefix("lock-"))
                begun = [*self.partial.glob(f"shard-{part - 1:06d}.*"), *self.partial.glob(f"part-{part:06d}/*.lmdb")]
                rows = [*self.partial.glob(f"rows-{part - 1:06d}"), *self.partial.glob(f"part-{part:06d}/rows-*")]
                with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
                    if any(path.stat().st_size for path in begun) and not rows:
                        return psutil.Process(int(lock.read_text()))
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
        if self.driver.returncode or not out.startswith("{"):
            raise Failed(f"{when}: exit status {self.driver.returncode}: {out!r} {error!r}")
        self.case.check(self.folder, wanted, when)
        return int(json.loads(out)["resumed"])


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


def run() -> list[str]:
    counts, chance = Counter[str](), random.Random("ray")
    with tempfile.TemporaryDirectory() as name:
        found = sample_photographs.make(Path(name, "images"), per_class=13, val=2, quiet=True)
        (source := Path(name, "source")).mkdir()
        for number in range(SHARDS * RECORDS):
            (source / f"{number:05d}.jpg").symlink_to(found[number % len(found)])
        with own_ray_folders():
            cluster = Cluster()
            try:
                for container in _packs.NAMES:
                    case, target = Case(container, source, ("--shard-records", str(RECORDS))), Path(name, "target")
                    wanted = case.whole(Path(name, f"plain-{container}"))
                    for kind in ROUNDS:
                        case.begin(target)
                        lost = lose(Run(case, target, cluster.address), kind.split(" and "), cluster, chance)
                        resumed = lost.end(wanted, f"{container}, {kind}")
                        counts.update(rounds=1, resumed="driver" in kind and resumed > RECORDS)
                        counts.update(kind.split(" and "))
            finally:
                cluster.shutdown()
    return [
        f"- {counts['rounds']} rounds over {', '.join(_packs.NAMES)}, {SHARDS} shards of {RECORDS} images each, on 3 "
        f"nodes of one processor (`ray.cluster_utils.Cluster`); killed with SIGKILL: a node with all its processes "
        f"{counts['node']} times, a process of Ray in the middle of a part {counts['worker']} times, the driver "
        f"{counts['driver']} times; {counts['resumed']} drivers that were started again found parts that were packed",
        "- every final file had the bytes of a plain `iofast pack`; no process and no file was left",
    ]


def lose(run: Run, kinds: list[str], cluster: Cluster, chance: random.Random) -> Run:
    """Lose a node, a worker or the driver, one after the other, while parts are packed."""
    for number, what in enumerate(kinds):
        run.wait_for(chance.randint(2, SHARDS // 4) + number * SHARDS // 4)
        if what == "node":
            cluster.kill_node()
        elif what == "worker":
            run.packing().send_signal(signal.SIGKILL)
        else:
            run.kill_driver()
    return run
