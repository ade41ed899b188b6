"""`python -P tools/torture/parsing/__main__.py SECONDS NAME …`: drivers for a time, each a process, two at once.

`--steps SEED FIRST COUNT NAME` runs some steps in this process: those of a failure again, or a quick trial.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT))  # last: a sanitized build stands in $PYTHONPATH

from tools.torture.parsing.run import Run  # noqa: E402

HANGS = 60  # seconds after which a step is taken for a hang
SAVED = 5.0  # seconds between two notes of what was done
AT_ONCE = 2
MEMORY = Path("/dev/shm")  # where files cost no writing to a disk


def state_file(name: str) -> Path:
    """What a driver has done: seed, seconds, steps, runs, counts."""
    return ROOT / "build" / f"parsing-{name}.json"


def last_file(name: str) -> Path:
    """Which step a driver does now: what a crash was about."""
    return (MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())) / f"iofast-parsing-{name}.txt"


def main(words: list[str]) -> int:
    """All drivers, or some steps of one; 0 where all held."""
    if words[0] == "--for":
        return for_seconds(words[2], float(words[1]))
    if words[0] == "--steps":
        return some_steps(words[4], *map(int, words[1:4]))
    waiting, running, failed = list(words[1:]), dict[str, subprocess.Popen[bytes]](), 0
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            name = waiting.pop(0)
            running[name] = subprocess.Popen([sys.executable, "-P", __file__, "--for", words[0], name])
        time.sleep(0.1)
        for name in [name for name, each in running.items() if each.poll() is not None]:
            if running.pop(name).returncode:
                failed = 1
                print(f"{name} failed; its last step again: --steps {last_file(name).read_text()}", file=sys.stderr)
    return failed


def for_seconds(name: str, seconds: float) -> int:
    """Until so much time is over, that of earlier runs counted in."""
    if build := os.environ.get("IOFAST_BUILD"):  # of tools/sanitize.sh
        from iofast.kernel import _native

        assert Path(_native.__file__).is_relative_to(build), f"no sanitizers: {_native.__file__}"
    file = state_file(name)
    state = {"seed": time.time_ns(), "seconds": 0.0, "steps": 0, "runs": 0, "counts": {}}
    if file.exists():
        state = json.loads(file.read_text())
    counts = Counter(state["counts"])
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        run = Run(name, state["seed"], Path(folder) / name, counts)
        number, before, runs = int(state["steps"]), float(state["seconds"]), int(state["runs"]) + 1
        began = saved = time.monotonic()
        spent = before
        while spent < seconds:
            faulthandler.dump_traceback_later(HANGS, exit=True)
            last_file(name).write_text(f"{run.seed} {number} 1 {name}")
            run.step(number)
            number, now = number + 1, time.monotonic()
            spent = before + now - began
            if now - saved > SAVED or spent >= seconds:
                saved = now
                keep(file, seed=run.seed, seconds=spent, steps=number, runs=runs, counts=counts)
        faulthandler.cancel_dump_traceback_later()
    last_file(name).unlink(missing_ok=True)  # a driver that had its time before does no step
    return 0


def keep(file: Path, **state: object) -> None:
    """Note what was done, whole or not at all."""
    file.parent.mkdir(exist_ok=True)
    file.with_suffix(".new").write_text(json.dumps(state))
    file.with_suffix(".new").replace(file)


def some_steps(name: str, seed: int, first: int, count: int) -> int:
    """Steps by their numbers; their files stay, so that one can look at those that did not hold."""
    folder = tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None)
    print(f"{name} in {folder}", flush=True)
    os.environ["XDG_CACHE_HOME"] = folder
    counts = Counter[str]()
    run = Run(name, seed, Path(folder) / name, counts)
    for number in range(first, first + count):
        faulthandler.dump_traceback_later(HANGS, exit=True)
        run.step(number)
    print(name, dict(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
