"""Two machines run one pack into a bucket, and both are killed again and again: never a partial set, and equal bytes.

A machine is a process with a folder for work of its own, killed after a random time. The bucket is on this machine
(moto). What is visible is looked at after each pair of kills.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path

from object_store import ENVIRONMENT, Bucket, moto
from packing_runs import digests
from tqdm import tqdm

from tools import sample_photographs
from tools.torture import Failed

ROUNDS = 25
MOST = 30  # pairs of runs of a round
_OPTIONS: tuple[tuple[str, ...], ...] = ((), ("--shuffle", "3", "--split", "val=0.2"))
_SHAPE = ("--resize", "128", "--shard-records", "12", "--workers", "1", "--quiet")


class Set:
    """One set in the bucket, and the bytes that it must get."""

    def __init__(self, bucket: Bucket, images: Path, number: int) -> None:
        self.name, self.prefix, self.bucket = f"out{('.tar', '.tfrecord')[number % 2]}", f"set{number}", bucket
        self.options = _OPTIONS[number // 2 % len(_OPTIONS)]
        self.command = [sys.executable, "-m", "iofast", "pack", str(images)]

    def start(self, target: str, work: Path) -> subprocess.Popen[str]:
        """Start a run on the machine whose folder for work is `work`."""
        environment = {**os.environ, **ENVIRONMENT, "AWS_ENDPOINT_URL": self.bucket.endpoint, "IOFAST_WORK": str(work)}
        words = [*self.command, target, *_SHAPE, *self.options]
        return subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)

    def names(self) -> list[str]:
        """The names of all objects."""
        text = self.bucket.request("GET", query=f"?list-type=2&prefix={self.prefix}/").decode()
        return [each.partition("</Key>")[0].removeprefix(f"{self.prefix}/") for each in text.split("<Key>")[1:]]

    def digests(self) -> dict[str, str]:
        """The digests of all objects."""
        return {name: sha256(self.bucket.request("GET", f"{self.prefix}/{name}")).hexdigest() for name in self.names()}

    def is_published(self) -> bool:
        """Whether the set is complete and nothing else is left. Raises `Failed` if only a part of it is visible."""
        names = self.names()
        work = [name for name in names if name.startswith(f"{self.name}.partial/")]
        shown = set(names) - set(work)
        if f"{self.name}.manifest" in shown and f"{self.name}.index" not in shown:  # the manifest comes last
            raise Failed(f"{self.prefix}: visible before it is published: {sorted(shown)}")
        return not work and f"{self.name}.manifest" in shown


def run() -> list[str]:
    done = Counter[str]()
    with tempfile.TemporaryDirectory() as name, moto() as endpoint:
        images, bucket = Path(name) / "images", Bucket(endpoint, "bucket")
        bucket.request("PUT")
        sample_photographs.make(images, per_class=20, val=0, quiet=True)
        for number in tqdm(range(ROUNDS), desc="to_store"):
            done += _round(
                Set(bucket, images / "train", number), Path(name) / str(number), random.Random(f"to_store {number}")
            )
    return [
        f"- {done['rounds']} sets of tar and TFRecord, each packed by two machines at once: {done['runs']} runs, "
        f"{done['kills']} of them killed",
        "- options: none; --shuffle with --split",
        "- every object had the bytes of one undisturbed run into a folder, and nothing else was left; on a machine "
        "at most the work folder of its last run",
    ]


def _round(goal: Set, folder: Path, chance: random.Random) -> Counter[str]:
    whole, counts = folder / "whole", Counter(rounds=1)
    whole.mkdir(parents=True)
    ended = goal.start(str(whole / goal.name), folder / "work")
    if ended.wait(300):
        raise Failed(f"a run into a folder ended with {ended.communicate()[1].strip()}")
    for attempt in range(MOST):
        both = [goal.start(f"s3://bucket/{goal.prefix}/{goal.name}", folder / f"work{each}") for each in range(2)]
        for each in both:
            time.sleep(chance.uniform(0.3, 1.0 + attempt / 2))
            counts["kills"] += each.poll() is None
            each.kill()
            words = each.communicate()[1].strip()
            if each.returncode not in (0, -9) and "exists already" not in words:
                raise Failed(f"{goal.prefix}, attempt {attempt}: exit status {each.returncode}: {words}")
        counts["runs"] += 2
        if any(len([*(folder / f"work{each}").glob("*")]) > 1 for each in range(2)):
            raise Failed(f"{goal.prefix}, attempt {attempt}: the work folder of a run before is still there")
        if goal.is_published():
            break
    if goal.digests() != digests(whole):
        raise Failed(f"{goal.prefix}: {sorted(goal.digests())} differ from {sorted(digests(whole))}")
    return counts
