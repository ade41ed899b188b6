"""A pack that is killed, or whose disk fills or fails, at any moment: nothing false is seen, the bytes are the same.

SIGKILL hits the parent or one worker at a random time, up to three times a round, of packs into LMDB, tar and TFRecord;
then the same command runs to its end. In further rounds writes fail as on a full disk, or reads fail, from a random one
on.
"""

import errno
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from tqdm import tqdm

from tools import sample_photographs
from tools.torture import Failed, _packs
from tools.torture._packs import NAMES, Case

KILLS = 220  # that hit a running pack
FULL = 60  # rounds with writes that fail


class Rounds:
    """The cases, the results of undisturbed runs, and the counts of the rounds that held."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.done = folder, Counter[str]()
        images = folder / "images"
        sample_photographs.make(images / "one", per_class=40, val=4, quiet=True)
        self.cases = [Case(name, images / "one") for name in NAMES]
        start = time.monotonic()
        self.wanted = {case: case.whole(folder / f"whole-{case.name}") for case in self.cases}
        self.seconds = (time.monotonic() - start) / len(NAMES)
        self.counts = {case: _packs.count(folder / f"whole-{case.name}" / case.name) for case in self.cases}

    def case(self, number: int) -> tuple[Case, random.Random]:
        """The case of a round, and its random numbers: rounds do not depend on each other."""
        return self.cases[number % len(self.cases)], random.Random(f"kills {number}")

    def kill(self, number: int) -> None:
        """One round: up to three kills, then run to the end."""
        case, chance = self.case(number)
        folder, counts = self.folder / "kill", Counter[str]()
        case.begin(folder)
        for turn in range(chance.randint(1, 3)):
            if turn and case.over(folder):
                break
            counts[_packs.kill(case, folder, chance, self.seconds)] += 1
            counts["while resuming"] += turn > 0
            case.check_visible(folder, self.counts[case], f"round {number}, {case.name}")
        if not case.over(folder):
            start = time.monotonic()
            counts["resumed"] += case.finish(folder) > 0
            self.seconds += 0.1 * (time.monotonic() - start - self.seconds)  # else kills come too late or early
        case.check(folder, self.wanted[case], f"round {number}, {case.name}")
        self.done.update(rounds=1, **counts)

    def fail(self, number: int, library: Path) -> None:
        """One round with a full disk (even numbers) or failing reads of its own files; then run to the end."""
        case, chance = self.case(number // 2)
        folder, kind = self.folder / "fail", "write" if number % 2 == 0 else "read"
        code = errno.ENOSPC if kind == "write" else errno.EIO
        case.begin(folder)
        fault = f"{kind}:{code}:{int(1.5 ** chance.uniform(0, 16))}:{case.name}.partial/"
        ended = _packs.run_with(library, fault, case.command(folder, "--quiet"))
        when = f"{fault}, {case.name}"
        if ended.returncode not in (0, 1) or ended.stderr.count("\n") != (ended.returncode == 1):
            raise Failed(f"{when}: exit status {ended.returncode}: {ended.stderr.strip()}")
        if ended.returncode and kind == "write" and "disk is full" not in ended.stderr:
            raise Failed(f"{when}: {ended.stderr.strip()}")
        case.check_visible(folder, self.counts[case], when)
        if not case.over(folder):
            case.finish(folder)
        case.check(folder, self.wanted[case], when)
        self.done.update(**{f"{kind}s": 1, f"{kind}s that failed": ended.returncode})


def run() -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        rounds = Rounds(Path(name))
        done = rounds.done
        with tqdm(total=KILLS, desc="kills") as bar:
            while (hits := done["parent"] + done["worker"]) < KILLS:
                bar.update(hits - bar.n)
                rounds.kill(done["rounds"])
        library = _packs.build_faults(Path(name))
        if library is None:
            raise Failed("no C compiler: failing reads and writes were not tried")
        for number in tqdm(range(2 * FULL), desc="faults"):
            rounds.fail(number, library)
    return [
        f"- {done['rounds']} rounds over {', '.join(NAMES)}; killed: the parent "
        f"{done['parent']} times, a worker {done['worker']} times, {done['while resuming']} of them while going on; "
        f"{done['in time']} runs ended before their kill came; {done['resumed']} final runs had images done already",
        f"- {done['writes']} rounds with a disk that fills from a random write on, which ended "
        f"{done['writes that failed']} runs; {done['reads']} with own files that cannot be read from a random read on, "
        f"which ended {done['reads that failed']}: one line each, then the same command",
        "- every final file had the bytes of an undisturbed run; readers found the old or the whole; nothing else was "
        f"left; all workers were gone within {_packs.ENDS:.0f} s",
    ]
