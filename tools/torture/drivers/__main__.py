"""`python -P tools/torture/drivers/__main__.py SECONDS NAME …`: run drivers for a time, each in a process, two at once.

`--steps SEED FIRST COUNT NAME` repeats steps in this process and keeps their files.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))  # last: a sanitized build is in $PYTHONPATH

from tools.torture._progress import Progress
from tools.torture.drivers.run import Run

HANGS = 60  # seconds after which a step counts as a hang
SAVED = 5.0  # seconds between two saves of the progress
AT_ONCE = 2
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())  # files cost no disk writes


def last_file(name: str) -> Path:
    """The file that names the driver's current step, for crashes of the process."""
    return MEMORY / f"iofast-driver-{name}.txt"


def main(words: list[str]) -> int:
    """Run all drivers, or some steps of one. Return 0 if all held."""
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
                print(f"{name} failed; repeat its last step: --steps {last_file(name).read_text()}", file=sys.stderr)
    return failed


def for_seconds(name: str, seconds: float) -> int:
    """Run a driver for so long, the time of interrupted runs included."""
    if build := os.environ.get("IOFAST_BUILD"):  # set by tools/sanitize.sh
        from iofast.kernel import _native

        assert Path(_native.__file__).is_relative_to(build), f"no sanitizers: {_native.__file__}"
    done = Progress(f"driver-{name}")
    done.setdefault("seed", time.time_ns())
    counts = Counter(done.get("counts", {}))
    number, spent = done.get("steps", 0), done.get("seconds", 0.0)
    done["runs"] = done.get("runs", 0) + 1
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        run = Run(name, done["seed"], Path(folder) / name, counts)
        began, saved = time.monotonic() - spent, 0.0
        while spent < seconds:
            faulthandler.dump_traceback_later(HANGS, exit=True)
            last_file(name).write_text(f"{run.seed} {number} 1 {name}")
            run.step(number)
            number, now = number + 1, time.monotonic()
            spent = now - began
            if now - saved > SAVED or spent >= seconds:
                saved = now
                done.update(seconds=spent, steps=number, counts=counts)
                done.save()
        faulthandler.cancel_dump_traceback_later()
    last_file(name).unlink(missing_ok=True)  # missing if an earlier run had used up the time
    return 0


def some_steps(name: str, seed: int, first: int, count: int) -> int:
    """Take steps by their numbers; their files stay for inspection."""
    folder = tempfile.mkdtemp(dir=MEMORY)
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
