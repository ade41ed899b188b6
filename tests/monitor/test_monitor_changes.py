"""What advice tells to do: numbers that fit the machine, commands that run as they stand."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from monitor_snapshots import LOADER
from test_monitor_advice import (
    ALONE,
    ASLEEP,
    BUSY,
    CACHE,
    COMPUTE,
    CPU,
    DECODES,
    SINGLE,
    STORAGE,
    device,
    given_,
    verdict,
)

from iofast.monitor.findings import Bound, Cause


def test_ranks_share_the_cores() -> None:
    """Eight ranks that are told to take all four idle cores each would be told to take 32."""
    starved = verdict(Bound.INPUT, Cause.WORKERS, low=0.8, high=0.9)
    others = dict.fromkeys(range(1, 4), 0.8)
    assert "num_workers=6" in given_(starved, **BUSY)["num_workers"].change
    assert "num_workers=3" in given_(starved, **BUSY, peers=others)["num_workers"].change
    assert "1.0 cores are idle for each rank" in given_(starved, **BUSY, peers=others)["num_workers"].text
    alone = {**ALONE, "peers": others}
    assert "num_workers=1" in given_(replace(SINGLE, stall=starved.stall), **alone)["first_workers"].change


@pytest.mark.parametrize(
    ("used", "size", "batch"), [(10, 32, 128), (20, 32, 112), (55, 32, 40), (55, 12, 15), (30, 3, 7)]
)
def test_a_larger_batch_fits_into_the_memory(used: int, size: int, batch: int) -> None:
    """All that is in use may grow with the batch: 80 GiB, of which a tenth stays free."""
    changes = {**device(sm_active=0.3, memory_used=used << 30), "loaders": (replace(LOADER, batch_size=size),)}
    assert f"batch_size={batch}," in given_(COMPUTE, **changes)["batch_size"].change
    assert batch / size * used <= 0.9 * 80
    unknown = given_(COMPUTE, **device(sm_active=0.3, memory_used=50 << 30))["batch_size"].change
    assert unknown.startswith("a batch_size up to 1.4 times as large")


def test_commands_name_the_folder_of_the_images() -> None:
    """Where it is not certain, a word stands for it: a class's folder would lose the other classes."""
    paths, sure = {"dataset_paths": ("/data/my train/cat", "/data/labels")}, {"image_root": "/data/my train"}
    for root, folder, source in ((sure, "'/data/my train'", "/data/my train"), ({}, "FOLDER", "FOLDER")):
        known = {**paths, **root}
        small = given_(STORAGE, **ASLEEP, file_bytes=30_000, **known)["pack"].change
        assert small == f"iofast pack {folder} train.lmdb"
        alone = {**ALONE, **known}
        assert f'FastDataset("{source}")' in given_(SINGLE, **alone, file_bytes=30_000)["fastloader"].change
        assert 'FastDataset("train.lmdb")' in given_(SINGLE, **alone, file_bytes=400_000)["fastloader"].change
        assert f"iofast pack {folder} " in given_(CPU, **BUSY, **DECODES, **known)["pack_resize"].change
    warmed = given_(CACHE, **ASLEEP, **paths)["page_cache"].change
    assert warmed.startswith("find '/data/my train/cat' -type f")


def test_the_command_that_warms_the_page_cache_runs(tmp_path: Path) -> None:
    (tmp_path / "a class").mkdir()
    (tmp_path / "a class" / "1.jpg").write_bytes(b"x")
    command = given_(CACHE, **ASLEEP, dataset_paths=(str(tmp_path),))["page_cache"].change
    assert subprocess.run(["sh", "-c", command], capture_output=True, check=True).stderr == b""
