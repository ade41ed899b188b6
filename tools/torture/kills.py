"""A pack that is killed at any moment leaves nothing under the final name, no workers, and ends with the same bytes.

SIGKILL hits the parent or one worker at a random time, up to three times a round; then the same command runs to its
end.
"""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from tqdm import tqdm

from tools import sample_photographs
from tools.torture import Failed

ROUNDS = 60
ENDS = 5.0  # seconds within which workers must be gone


def run() -> list[str]:
    chance = random.Random(2)
    counts = {"parent": 0, "worker": 0, "in time": 0, "resumed": 0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sample_photographs.make(folder / "images", per_class=40, val=4, quiet=True)
        start = time.monotonic()
        _finish(folder, "whole.lmdb")
        seconds = time.monotonic() - start
        wanted = _digest(folder / "whole.lmdb")
        for number in tqdm(range(ROUNDS), desc="kills", unit="round"):
            for _ in range(chance.randint(1, 3)):
                counts[_kill(folder, chance, seconds)] += 1
                if (folder / "out.lmdb").exists() and _digest(folder / "out.lmdb") != wanted:
                    raise Failed(f"round {number}: a file of other bytes stands under the final name")
            if not (folder / "out.lmdb").exists():
                counts["resumed"] += _finish(folder, "out.lmdb") > 0
            if _digest(folder / "out.lmdb") != wanted:
                raise Failed(f"round {number}: the file differs from that of an undisturbed run")
            left = sorted(
                path.name for path in folder.iterdir() if path.name not in ("images", "whole.lmdb", "out.lmdb")
            )
            if left:
                raise Failed(f"round {number}: left behind: {left}")
            (folder / "out.lmdb").unlink()
    return [
        f"- {ROUNDS} rounds; killed: the parent {counts['parent']} times, a worker {counts['worker']} times; "
        f"{counts['in time']} runs ended before their kill came",
        f"- {counts['resumed']} of the final runs went on with images that a killed run had finished",
        "- every final file had the bytes of an undisturbed run; nothing else was left; all workers were gone "
        f"within {ENDS:.0f} s",
    ]


def _command(folder: Path, target: str) -> list[str]:
    return [sys.executable, "-m", "iofast", "pack", str(folder / "images"), str(folder / target), "--resize", "128"]


def _finish(folder: Path, target: str) -> int:
    """Run to the end; how many images an earlier run had done."""
    run = subprocess.run([*_command(folder, target), "--json", "--quiet"], capture_output=True, text=True, timeout=300)
    if run.returncode:
        raise Failed(f"exit status {run.returncode}: {run.stderr.strip()}")
    return int(json.loads(run.stdout)["resumed"])


def _kill(folder: Path, chance: random.Random, seconds: float) -> str:
    """Start a pack, kill parent or worker after a random time, wait until all its processes are gone."""
    process = psutil.Popen(_command(folder, "out.lmdb"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(chance.uniform(0, seconds * 0.9))
    try:
        family = [process, *process.children(recursive=True)]
        workers = [member for member in family[1:] if member.is_running()]
        victim = chance.choice(workers) if workers and chance.random() < 0.4 else process
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


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
