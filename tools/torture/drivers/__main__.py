"""`python -P tools/torture/drivers/__main__.py SECONDS FOLDER NAME …`: run drivers, each in a process, two at once.

Their counts go to FOLDER/NAME. `--steps SEED FIRST COUNT NAME` repeats steps in this process and keeps their files.
"""

import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))  # last: a sanitized build is in $PYTHONPATH

from tools.torture.drivers.run import Run

HANGS = 60  # seconds after which a step counts as a hang
AT_ONCE = 2
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())  # files cost no disk writes


def main(words: list[str]) -> int:
    """Run all drivers, or some steps of one. Return 0 if all held."""
    if words[0] == "--for":
        return for_seconds(words[3], float(words[1]), Path(words[2]))
    if words[0] == "--steps":
        return some_steps(words[4], *map(int, words[1:4]))
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return max(threads.map(lambda name: _in_process(name, *words[:2]), words[2:]))


def _in_process(name: str, seconds: str, folder: str) -> int:
    status = subprocess.run([sys.executable, "-P", __file__, "--for", seconds, folder, name]).returncode
    if status:
        print(f"{name} failed; repeat its last step: --steps {Path(folder, name).read_text()}", file=sys.stderr)
    return int(status != 0)


def for_seconds(name: str, seconds: float, results: Path) -> int:
    """Run a driver for so long. Its file names the current step, for crashes of the process, and at last its counts."""
    if build := os.environ.get("IOFAST_BUILD"):  # set by tools/sanitize.sh
        from iofast.kernel import _native

        assert Path(_native.__file__).is_relative_to(build), f"no sanitizers: {_native.__file__}"
    number, counts, began = 0, Counter[str](), time.monotonic()
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        run = Run(name, time.time_ns(), Path(folder) / name, counts)
        while time.monotonic() - began < seconds:
            faulthandler.dump_traceback_later(HANGS, exit=True)
            (results / name).write_text(f"{run.seed} {number} 1 {name}")
            run.step(number)
            number += 1
        faulthandler.cancel_dump_traceback_later()
    (results / name).write_text(json.dumps(counts | {"steps": number, "seconds": int(time.monotonic() - began)}))
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
