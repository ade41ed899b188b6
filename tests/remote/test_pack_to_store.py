"""Packing into a bucket: the bytes of a local run, whatever happens on the way, and never a partial set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from object_store import Bucket
from packing_runs import digests
from PIL import Image
from places import ROOT

from iofast.packing import PackReport, pack

RECORDS = 12
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "distinct": {"drop_duplicates": True, "shuffle": 3},
    "splits": {"split": "val=0.2,test=0.1", "shuffle": 1},
    "both": {"split": "val=0.2", "drop_duplicates": True},
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of pictures, many of them equal, some in another class, and three damaged files."""
    root = tmp_path_factory.mktemp("to_store") / "images"
    rng = np.random.default_rng(5)
    for number in range(100):
        path = root / "abc"[number % 3] / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 16), (int(rng.integers(40)) * 6, 0, 0)).save(path)
    for number in (4, 50, 99):
        path = root / "abc"[number % 3] / f"{number:03d}.png"
        path.write_bytes(path.read_bytes()[:40])
    return root


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for all tests, so that they share workers."""
    return tmp_path_factory.mktemp("machine") / "work"


@pytest.fixture(autouse=True)
def work(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for the work on this machine."""
    monkeypatch.setenv("IOFAST_WORK", os.fspath(machine))
    return machine


def options_of(**options: Any) -> dict[str, Any]:
    return {"resize": 12, "max_errors": 20, "workers": 1, "shard_records": RECORDS, **options}


def names(bucket: Bucket, prefix: str = "") -> list[str]:
    """The keys of all objects below a prefix."""
    text = bucket.request("GET", query=f"?list-type=2&prefix={prefix}").decode()
    return [part.partition("</Key>")[0] for part in text.split("<Key>")[1:]]


def stored(bucket: Bucket, prefix: str = "out/") -> dict[str, str]:
    """Digests of all objects below a prefix."""
    found = names(bucket, prefix)
    return {name.removeprefix(prefix): sha256(bucket.request("GET", name)).hexdigest() for name in found}


def locally(images: Path, folder: Path, name: str, **options: Any) -> tuple[PackReport, dict[str, str]]:
    """The report and the digests of a local run."""
    folder.mkdir()
    report = pack(images, folder / name, **options_of(**options))
    return report, digests(folder)


def comparable(report: PackReport) -> PackReport:
    """A report without times and places."""
    lists = {each: Path(getattr(report, each) or "").name for each in ("errors_file", "duplicates_file", "target")}
    return replace(report, seconds=0.0, **lists)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("suffix", ["tar", "tfrecord"])
def test_bucket_and_folder_get_equal_bytes(
    bucket: Bucket, images: Path, tmp_path: Path, work: Path, suffix: str, options: Mapping[str, Any]
) -> None:
    whole, expected = locally(images, tmp_path / "local", f"train.{suffix}", **options)
    report = pack(images, f"s3://{bucket.name}/out/train.{suffix}", **options_of(**options))
    assert stored(bucket) == expected
    assert comparable(report) == comparable(whole)
    assert report.target == f"s3://{bucket.name}/out/train.{suffix}"
    assert report.failed == 3
    assert report.duplicates > 20
    assert bucket.unfinished_uploads() == 0
    assert not any(work.iterdir())


def target_in(bucket: Bucket) -> str:
    return f"s3://{bucket.name}/out/t.tar"


@pytest.fixture(scope="module")
def expected(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digests of a local run that drops duplicates."""
    return locally(images, tmp_path_factory.mktemp("expected") / "out", "t.tar", drop_duplicates=True)[1]


def packed(images: Path, bucket: Bucket, **options: Any) -> PackReport:
    return pack(images, target_in(bucket), **options_of(drop_duplicates=True, **options))


# Children of one process, which has imported everything, are killed after a number of requests until one ends.
_KILLED = """
import json, os, random, signal, sys
sys.path.insert(0, "tests/support")
from iofast.packing import pack, to_store
from iofast.packing.pool import WorkerPool
from iofast.remote.store import Store
from object_store import Bucket

source, url, options, endpoint, name, seed, least = json.loads(sys.argv[1])
bucket, chance, kills = Bucket(endpoint, name), random.Random(seed), 0

def killed(left, first):
    whole = Store._patiently
    async def patiently(self, *arguments):
        nonlocal left
        left -= 1
        if left == 0 and first:
            os.kill(os.getpid(), signal.SIGKILL)
        result = await whole(self, *arguments)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    Store._patiently = patiently
    pack(source, url, **options)
    os._exit(0)

while True:
    child = os.fork()
    if not child:
        killed(chance.randrange(5, least * (kills + 1)), chance.random() < 0.5)  # joining begins anew, so leave it time
    status = os.waitpid(child, 0)[1]
    if status == 0:
        break
    assert os.WIFSIGNALED(status), status
    kills += 1
    names = bucket.request("GET", query="?list-type=2&prefix=out/").decode()
    begun, shown = "/publishing<" in names, "out/t.tar.manifest" in names
    assert begun or not ("out/t-" in names or shown), names
print(kills)
"""


@pytest.mark.parametrize("least", [20, 80])
def test_killed_after_any_request(
    bucket: Bucket, images: Path, expected: dict[str, str], least: int, work: Path
) -> None:
    """Early kills lose most of the work; late ones come while the set is published."""
    options = options_of(drop_duplicates=True)
    facts = [str(images), target_in(bucket), options, bucket.endpoint, bucket.name, least, least]
    ended = subprocess.run(
        [sys.executable, "-c", _KILLED, json.dumps(facts)], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) >= 2
    assert stored(bucket) == expected
    assert not any(work.iterdir())
