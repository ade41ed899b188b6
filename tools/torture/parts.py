"""A pack in eight parts, with kills, in any order, some parts twice at once: the bytes are those of one run.

In each round eight processes or more start in random order with random delays; twenty kills hit them or their workers;
what was killed starts again. Some runs join the parts if they are the last, and the joining is killed as well.
"""

import random
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
from tqdm import tqdm

from tools import sample_photographs
from tools.torture import Failed, _packs
from tools.torture._packs import Case

ROUNDS = 15
PARTS = 8
KILLS = 20  # a round
AT_ONCE = 3  # processes
_OPTIONS: tuple[tuple[str, ...], ...] = ((), ("--shuffle", "3", "--split", "val=0.2"))
_DONE = ("exists already", "published all parts", "except for cleaning up")  # by another run
_TIME = 240.0  # seconds of a round at most


class Round:
    """The parts of one round that are left to be packed, and the processes that pack some."""

    def __init__(self, case: Case, folder: Path, chance: random.Random, options: tuple[str, ...]) -> None:
        self.case, self.folder, self.chance, self.options = case, folder, chance, options
        self.left = [*range(1, PARTS + 1), chance.randint(1, PARTS)]  # one of them twice
        chance.shuffle(self.left)
        self.running: dict[psutil.Popen, int] = {}
        self.counts = Counter[str]()

    def start(self) -> None:
        """Start the next part; every third one joins the parts if it is the last."""
        number = self.left.pop(0)
        words = ["--part", f"{number}/{PARTS}", "--quiet", "--workers", "1", *self.options]
        if self.chance.random() < 1 / 3:
            words.append("--finish-when-complete")
        command = self.case.command(self.folder, *words)
        self.running[psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)] = number
        self.counts["runs"] += 1

    def kill(self) -> None:
        """Kill one of the processes, or a worker."""
        process = self.chance.choice([*self.running])
        try:
            victim = self.chance.choice([process, process, *process.children()])
            victim.kill()
        except psutil.NoSuchProcess:
            return
        self.counts["kills"] += 1

    def reap(self) -> None:
        """Take note of the processes that have ended; a killed part is left to be packed."""
        for process, number in list(self.running.items()):
            status = process.poll()
            if status is None:
                continue
            del self.running[process]
            _, words = process.communicate()
            if status == -9:
                self.left.insert(self.chance.randint(0, len(self.left)), number)
            elif status and not any(each in words for each in _DONE):
                raise Failed(f"part {number}: exit status {status}: {words.strip()}")

    def run(self) -> None:
        """Pack all parts, with `KILLS` kills."""
        end = time.monotonic() + _TIME
        while self.left or self.running:
            if time.monotonic() > end:
                raise Failed(f"after {_TIME:.0f} s parts {self.left} are left, and {len(self.running)} processes run")
            while self.left and len(self.running) < AT_ONCE:
                self.start()
            time.sleep(self.chance.uniform(0, 0.5))
            if self.counts["kills"] < KILLS:
                self.kill()
            self.reap()

    def join(self) -> None:
        """Join the parts, killed up to three times, unless the last part has done so."""
        for _ in range(3):
            if self.case.over(self.folder):
                self.counts["joined by the last part"] += 1
                return
            command = self.case.command(self.folder, "--finish", "--quiet", *self.options)
            process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(self.chance.uniform(0, 1.0))
            process.kill()
            self.counts["joins killed"] += process.wait() == -9
        if not self.case.over(self.folder):
            self.case.finish(self.folder, "--finish", *self.options)


def run() -> list[str]:
    done = Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        images = Path(name) / "images"
        sample_photographs.make(images, per_class=40, val=0, quiet=True)
        images /= "train"  # without splits, which --split draws
        for number in tqdm(range(ROUNDS), desc="parts"):
            done.update(_round(Path(name), images, number))
    return [
        f"- {done['rounds']} rounds over {', '.join(_packs.NAMES)}, each with {PARTS} parts, {AT_ONCE} at once and one "
        f"of them twice: {done['runs']} runs, {done['kills']} of them or of their workers killed",
        f"- {done['joined by the last part']} times the last part joined all; otherwise --finish did, killed "
        f"{done['joins killed']} times",
        "- options of the rounds: none; --shuffle with --split",
        "- every file had the bytes of one undisturbed run, and nothing else was left",
    ]


def _round(folder: Path, images: Path, number: int) -> Counter[str]:
    case, chance = Case(_packs.NAMES[number % 3], images), random.Random(f"parts {number}")
    options = _OPTIONS[number // 3 % len(_OPTIONS)]
    wanted, parts = case.whole(folder / "whole", *options), folder / "parts"
    case.begin(parts)
    each = Round(case, parts, chance, options)
    each.run()
    each.join()
    case.check(parts, wanted, f"round {number}, {case.name}")
    return each.counts + Counter(rounds=1)
