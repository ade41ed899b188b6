"""`python -P tools/torture/drivers/run.py SECONDS FOLDER NAME …`: run drivers, each in a process, two at once.

Their counts go to FOLDER/NAME. `--steps SEED FIRST COUNT NAME` repeats steps in this process and keeps their files.
"""

import faulthandler
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))  # last: a sanitized build is in $PYTHONPATH

from tools.torture import ROOT, Failed
from tools.torture.drivers import Driver, kind

HANGS = 60  # seconds after which a step counts as a hang
AT_ONCE = 2
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())  # files cost no disk writes
HEADER = """\
| driver | steps | minutes | how they ended | slowest step | memory |
|---|---|---|---|---|---|"""
TRACED = 4  # one step of four has its memory traced, which makes it three times as slow


class Run:
    """A driver at work; `counts` holds how its steps ended, and the largest figures."""

    def __init__(self, name: str, seed: int, folder: Path) -> None:
        self.name, self.seed, self.counts = name, seed, Counter[str]()
        self.driver: Driver = kind(name)(folder)
        self.driver.counts = self.counts
        self._threads = _threads()  # the fewest so far: threads of the previous step may still be ending

    def step(self, number: int) -> None:
        """Take one step. An exception gets a note that names the step."""
        began, self._threads = time.monotonic(), min(self._threads, _threads())
        if self.driver.MEMORY is not None and number % TRACED == 0:
            tracemalloc.start()
        try:
            ended = self.driver.step(random.Random(f"{self.name} {self.seed} {number}"))
            peak, seconds = tracemalloc.get_traced_memory()[1] >> 20, time.monotonic() - began
            assert peak <= (self.driver.MEMORY or 0), f"memory: expected {self.driver.MEMORY} MiB, found {peak}"
            assert seconds <= self.driver.SLOW, f"time of a step: expected {self.driver.SLOW} s, found {seconds:.1f}"
        except Exception as error:
            error.add_note(f"driver {self.name}, seed {self.seed}, step {number}")
            raise
        finally:
            if tracemalloc.is_tracing():
                _wait_for_threads(self._threads)
                tracemalloc.stop()
        self.counts.update([ended, "steps"])
        self.counts["slowest ms"] = max(self.counts["slowest ms"], int(1000 * seconds))
        self.counts["most MiB"] = max(self.counts["most MiB"], peak)


def _threads() -> int:
    """Threads that the system knows; one that Python has joined may still free its last bytes."""
    return len(os.listdir("/proc/self/task"))


def _wait_for_threads(most: int) -> None:
    """Wait for further threads to end: CPython 3.11 crashes if tracing stops while a thread frees memory."""
    until = time.monotonic() + 1
    while _threads() > most and time.monotonic() < until:
        time.sleep(0.001)


def campaign(*names: str, seconds: int = 600, sanitized: bool = True) -> list[str]:
    """Run these drivers, two at once, on a build with sanitizers. Returns a table. Raises `Failed` if a step fails."""
    with tempfile.TemporaryDirectory() as folder:
        program = [Path(__file__), str(seconds), folder, *names]
        python = [ROOT / "tools" / "sanitize.sh", sys.executable, "--"] if sanitized else [sys.executable, "-P"]
        environment = os.environ | ({} if sanitized else {"PYTHONPATH": str(ROOT)})
        ended = subprocess.run([*python, *program], cwd=ROOT, env=environment)
        if ended.returncode:
            raise Failed(f"exit status {ended.returncode}; the output above names driver, seed and step")
        return [HEADER, *(row(name, json.loads(Path(folder, name).read_text())) for name in names)]


def row(name: str, counted: dict[str, int]) -> str:
    """A row of the table."""
    counts = Counter(counted)
    steps, seconds = counts.pop("steps"), counts.pop("seconds")
    ends = ", ".join(
        f"{word} {number:,}" for word, number in sorted(counts.items()) if word not in ("slowest ms", "most MiB")
    )
    memory = "–" if kind(name).MEMORY is None else f"{counts['most MiB']} MiB"
    return f"| {name} | {steps:,} | {seconds / 60:.1f} | {ends} | {counts['slowest ms'] / 1000:.1f} s | {memory} |"


def main(words: list[str]) -> int:
    """Run all drivers, or some steps of one. Return 0 if all held."""
    if words[0] == "--for":
        for_seconds(words[3], float(words[1]), Path(words[2], words[3]))
        return 0
    if words[0] == "--steps":
        seed, first, count = map(int, words[1:4])
        folder = Path(tempfile.mkdtemp(dir=MEMORY))
        print(take(words[4], seed, range(first, first + count), folder, print), "in", folder)
        return 0
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return max(threads.map(lambda name: _in_process(name, *words[:2]), words[2:]))


def _in_process(name: str, seconds: str, folder: str) -> int:
    status = subprocess.run([sys.executable, "-P", __file__, "--for", seconds, folder, name]).returncode
    if status:
        print(f"{name} failed; repeat its last step: --steps {Path(folder, name).read_text()}", file=sys.stderr)
    return int(status != 0)


def for_seconds(name: str, seconds: float, result: Path) -> None:
    """Run a driver for so long. `result` names the current step, for crashes of the process, and at last its counts."""
    if build := os.environ.get("IOFAST_BUILD"):  # set by tools/sanitize.sh
        from iofast.kernel import _native

        assert Path(_native.__file__).is_relative_to(build), f"no sanitizers: {_native.__file__}"
    end = time.monotonic() + seconds
    numbers = itertools.takewhile(lambda _: time.monotonic() < end, itertools.count())
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        counts = take(name, time.time_ns(), numbers, Path(folder), result.write_text)
    result.write_text(json.dumps(counts | {"seconds": int(time.monotonic() - end + seconds)}))


def take(name: str, seed: int, numbers: Iterable[int], folder: Path, note: Callable[[str], object]) -> Counter[str]:
    """Take steps by their numbers, with files in `folder`; `note` gets the words that repeat each, before it."""
    os.environ["XDG_CACHE_HOME"] = str(folder)
    run = Run(name, seed, folder / name)
    for number in numbers:
        faulthandler.dump_traceback_later(HANGS, exit=True)
        note(f"{seed} {number} 1 {name}")
        run.step(number)
    faulthandler.cancel_dump_traceback_later()
    return run.counts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
