"""Disturbed packs: the commands, SIGKILL at random moments, calls that fail, and the checks of the result."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from packing_runs import digests

from iofast import open_reader
from iofast.errors import IofastError
from tools.torture import Failed

NAMES = ("out.lmdb", "out.tar", "out.tfrecord")
ENDS = 5.0  # seconds within which workers must be gone
_OPTIONS = ("--resize", "128", "--max-errors", "0")


@dataclass(frozen=True)
class Case:
    """One pack: the container's name, the images, and the options of a container in shards."""

    name: str
    images: Path
    shards: tuple[str, ...] = ("--shard-size", "150kB")

    def command(self, folder: Path, *words: str) -> list[str]:
        """The command that packs into `folder`."""
        shards = [] if self.name.endswith(".lmdb") else self.shards
        paths = [str(self.images), str(folder / self.name)]
        return [sys.executable, "-m", "iofast", "pack", *paths, *_OPTIONS, *shards, *words]

    def begin(self, folder: Path) -> None:
        """Make `folder` as it is before the pack."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()

    def whole(self, folder: Path, *words: str) -> dict[str, str]:
        """Pack into a new `folder` undisturbed; return the digests of the files."""
        self.begin(folder)
        self.finish(folder, *words)
        return digests(folder)

    def over(self, folder: Path) -> bool:
        """Whether the pack is done: the container exists, with at most an empty folder beside it."""
        partial = folder / f"{self.name}.partial"
        left = set(os.listdir(partial)) if partial.exists() else set()
        return there(folder / self.name) and left <= {"lock"}

    def finish(self, folder: Path, *words: str) -> int:
        """Run the same command to its end; return how many images an earlier run had done."""
        ended = subprocess.run(
            self.command(folder, "--json", "--quiet", *words), capture_output=True, text=True, timeout=300
        )
        if ended.returncode:
            raise Failed(f"{self.name}: exit status {ended.returncode}: {ended.stderr.strip()}")
        return int(json.loads(ended.stdout)["resumed"])

    def check(self, folder: Path, wanted: dict[str, str], when: str) -> None:
        """Check that the files are those of an undisturbed run."""
        for left in (path for path in folder.iterdir() if path.is_dir()):
            if set(os.listdir(left)) - {"lock"}:
                raise Failed(f"{when}: left behind: {left.name}")
            shutil.rmtree(left)
        found = digests(folder)
        if found != wanted:
            differ = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
            raise Failed(f"{when}: these files differ from those of an undisturbed run: {', '.join(differ)}")

    def check_visible(self, folder: Path, wanted: int, when: str) -> None:
        """Check that a reader sees nothing or the whole container."""
        if not there(folder / self.name):
            return
        try:
            found = count(folder / self.name)
        except IofastError as error:
            if (folder / f"{self.name}.partial").exists():
                return  # a set with its folder is unfinished, and the error states that
            raise Failed(f"{when}: {error}") from None
        if found != wanted:
            raise Failed(f"{when}: a reader finds {found} records, expected {wanted}")


def there(target: Path) -> bool:
    """Whether a container exists under its final name."""
    return target.exists() or target.with_name(f"{target.name}.manifest").exists()


def count(target: Path) -> int:
    """Records of a container, each read and checked."""
    with open_reader(target) as reader:
        return sum(1 for _ in reader)


def kill(case: Case, folder: Path, chance: random.Random, seconds: float) -> str:
    """Start the pack, kill parent or worker after a random time, and wait until all its processes are gone."""
    process = psutil.Popen(case.command(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(chance.uniform(0, seconds * 0.95))
    try:
        family = [process, *process.children(recursive=True)]
        workers = [member for member in family[1:] if member.is_running()]
        victim = chance.choice(workers) if workers and chance.random() < 0.2 else process
        killed = "in time" if process.poll() is not None else "parent" if victim is process else "worker"
        victim.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        killed, family = "in time", []
    if killed == "worker":
        process.wait(300)
    _, alive = psutil.wait_procs(family, ENDS)
    if alive:
        raise Failed(f"{len(alive)} processes still ran {ENDS:.0f} s after the {killed} was killed")
    process.wait()
    return killed


def build_faults(folder: Path) -> Path | None:
    """Compile the library that makes calls fail; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def run_with(library: Path, fault: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run with calls that fail; see faults.c."""
    environment = {**os.environ, "LD_PRELOAD": str(library), "IOFAST_FAULT": fault}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
