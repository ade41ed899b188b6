"""A pack that is killed, or whose disk fills or fails, at any moment: nothing false is seen, the bytes are the same.

SIGKILL hits the parent or one worker at a random time, up to three times a round, of packs into LMDB, tar and TFRecord;
then the same command runs to its end. In further rounds writes fail as on a full disk from a
random write on, or reads fail, and, if a tmpfs can be mounted, a small disk really fills.
"""

from __future__ import annotations

import errno
import json
import random
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from tqdm import tqdm

from tools import sample_photographs
from tools.torture import Failed, _packs
from tools.torture._packs import NAMES, Case

Ended = subprocess.CompletedProcess[str]
KILLS = 220  # that hit a running pack
FULL = 60  # rounds with writes that fail
SMALL = 60  # rounds on a small disk that another program fills
_LEFT = 300_000  # bytes at most that stay free on it
BROKEN = 45  # rounds with reads that fail


class Rounds:
    """The cases, the results of undisturbed runs, and the counts of the rounds that held."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.done = folder, Counter[str]()
        images = folder / "images"
        sample_photographs.make(images / "one", per_class=40, val=4, quiet=True)
        self.cases: list[Case] = []
        self.wanted: dict[Case, dict[str, str]] = {}
        self.counts: dict[Case, int] = {}
        self.bytes: dict[Case, int] = {}
        start = time.monotonic()
        for name in NAMES:
            self._whole(Case(name, images / "one"))
        self.seconds = (time.monotonic() - start) / len(NAMES)

    def _whole(self, case: Case) -> None:
        folder = self.folder / f"whole-{case.name}"
        case.begin(folder)
        case.finish(folder)
        self.cases.append(case)
        self.wanted[case], self.counts[case] = _packs.digests(folder), _packs.count(folder / case.name)
        self.bytes[case] = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())

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
        self._ended(case, folder, when, ended, ("disk is full",) if kind == "write" else ("",))
        self.done.update(**{f"{kind}s": 1, f"{kind}s that failed": ended.returncode})

    def _ended(self, case: Case, folder: Path, when: str, ended: Ended, reasons: tuple[str, ...]) -> None:
        """Check that a disturbed run ended well or with one line that gives a reason; then run to the end."""
        if ended.returncode not in (0, 1) or ended.stderr.count("\n") != (ended.returncode == 1):
            raise Failed(f"{when}: exit status {ended.returncode}: {ended.stderr.strip()}")
        if ended.returncode and not any(words in ended.stderr for words in reasons):
            raise Failed(f"{when}: {ended.stderr.strip()}")
        case.check_visible(folder, self.counts[case], when)
        if not case.over(folder):
            case.finish(folder)
        case.check(folder, self.wanted[case], when)

    def fill(self, number: int, disk: Path) -> None:
        """One round on a disk that another program fills at a random moment; then run to the end with free space."""
        case, chance = self.case(number)
        folder = disk / "full"
        case.begin(folder)
        begun, left = int(chance.uniform(0, 2 * self.bytes[case])), chance.randint(0, _LEFT)
        ended = _packs.run_filled(case.command(folder, "--quiet"), disk, begun, left)
        when = f"round {number} on a small disk, {case.name}"
        self._ended(case, folder, when, ended, ("disk is full", "too little disk space"))
        full = "disk is full" in ended.stderr
        self.done.update(fills=1, **{"fills that failed": ended.returncode, "while writing": int(full)})

    def unreadable(self, number: int, library: Path) -> None:
        """One round with source files that cannot be read: they alone are the failures."""
        case, _ = self.case(number)
        folder, part = self.folder / "unreadable", f"{number % 10}.jpg"
        case.begin(folder)
        bad = sorted(str(path.relative_to(case.images)) for path in case.images.rglob(f"*{part}"))
        ended = _packs.run_with(
            library, f"read:{errno.EIO}:1:{part}", case.command(folder, "--quiet", "--max-errors", "100%")
        )
        lines = (folder / f"{case.name}.errors.jsonl").read_text().splitlines() if bad else []
        found = [json.loads(line) for line in lines]
        if ended.returncode != (3 if bad else 0) or sorted(line["path"] for line in found) != bad:
            raise Failed(f"{case.name}: {part}: {ended.returncode}: {ended.stderr.strip()}: {found} instead of {bad}")
        if not all("input/output error" in line["reason"] for line in found):
            raise Failed(f"{case.name}: {found}")
        self.done.update(unreadable=1, files=len(bad))


def run() -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        rounds = Rounds(Path(name))
        done = rounds.done
        with tqdm(total=KILLS, desc="kills") as bar:
            while _hits(done) < KILLS:
                rounds.kill(done["rounds"])
                bar.update(_hits(done) - bar.n)
        library = _packs.build_faults(Path(name))
        if library is None:
            raise Failed("no C compiler: failing reads and writes were not tried")
        for number in tqdm(range(2 * FULL), desc="faults"):
            rounds.fail(number, library)
        with _packs.small_disk(Path(name) / "disk") as disk:
            for number in tqdm(range(SMALL if disk else 0), desc="small disk"):
                rounds.fill(number, disk)
        for number in tqdm(range(BROKEN), desc="unreadable files"):
            rounds.unreadable(number, library)
    return [
        f"- {done['rounds']} rounds over {', '.join(NAMES)}; killed: the parent "
        f"{done['parent']} times, a worker {done['worker']} times, {done['while resuming']} of them while going on; "
        f"{done['in time']} runs ended before their kill came; {done['resumed']} final runs had images done already",
        f"- {done['writes']} rounds with a disk that fills from a random write on, which ended "
        f"{done['writes that failed']} runs; {done['reads']} with own files that cannot be read from a random read on, "
        f"which ended {done['reads that failed']}: one line each, then the same command",
        f"- {done['fills']} rounds on a tmpfs of 64 MiB that another program fills at a random moment, which ended "
        f"{done['fills that failed']} runs, {done['while writing']} of them in a write; then there is room again, and "
        "the same command"
        if done["fills"]
        else "- no tmpfs could be mounted (only root may): a disk that is really full was not tried",
        f"- {done['unreadable']} rounds with {done['files']} source files that cannot be read: each is a failed image",
        "- every final file had the bytes of an undisturbed run; readers found the old or the whole; nothing else was "
        f"left; all workers were gone within {_packs.ENDS:.0f} s",
    ]


def _hits(done: Counter[str]) -> int:
    return done["parent"] + done["worker"]
