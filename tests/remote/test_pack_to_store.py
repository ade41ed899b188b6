"""Packing into a bucket: the bytes of a local run, whatever happens on the way, and never a partial set."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from object_store import ENVIRONMENT, Bucket, Fault, FaultProxy, Request
from packing_runs import digests
from PIL import Image
from places import ROOT

from iofast.errors import ErrorBudgetError, OptionError, StorageError, TargetError
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


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for the work on this machine."""
    folder = tmp_path / "work"
    monkeypatch.setenv("IOFAST_WORK", os.fspath(folder))
    return folder


def options_of(**options: Any) -> dict[str, Any]:
    return {"resize": 12, "max_errors": 20, "workers": 1, "shard_records": RECORDS, **options}


def names(bucket: Bucket, prefix: str = "") -> list[str]:
    """The keys of all objects below a prefix."""
    text = bucket.request("GET", query=f"?list-type=2&prefix={prefix}").decode()
    return [part.partition("</Key>")[0] for part in text.split("<Key>")[1:]]


def stored(bucket: Bucket, prefix: str = "out/") -> dict[str, str]:
    """Digests of all objects below a prefix."""
    return {name.removeprefix(prefix): sha256(bucket.request("GET", name)).hexdigest() for name in names(bucket, prefix)}


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
