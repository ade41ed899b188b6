"""The job script for SLURM: on a SLURM of one node, and with its environment alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from packing_runs import digests
from PIL import Image
from places import ROOT
from slurm_here import running_slurm

from iofast import pack

SCRIPT = ROOT / "examples" / "pack_slurm.sh"
OPTIONS = ("--resize", "64", "--shard-records", "20")


def make_images(root: Path, count: int, size: tuple[int, int]) -> Path:
    root.mkdir()
    for number in range(count):
        Image.effect_noise(size, number + 1).convert("RGB").save(root / f"{number:04d}.jpg")
    return root


def packed_at_once(images: Path, folder: Path) -> dict[str, str]:
    """The files of a run without parts."""
    folder.mkdir()
    pack(images, folder / "t.tar", resize=64, shard_records=20)
    return digests(folder)


@pytest.fixture
def command_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"])))


def test_the_script_in_the_environment_of_an_array(command_on_path: None, tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 80, (20, 16))
    target = tmp_path / "t.tar"
    array = {"SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "2", "SLURM_ARRAY_TASK_COUNT": "2"}
    for task in "21":
        environment = {**os.environ, **array, "SLURM_ARRAY_TASK_ID": task}
        subprocess.run(["bash", SCRIPT, images, target, *OPTIONS], env=environment, check=True)
    assert digests(tmp_path, "t") == packed_at_once(images, tmp_path / "one")


@pytest.mark.slow
def test_an_array_with_a_task_that_is_killed_and_requeued(
    command_on_path: None, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    images = make_images(tmp_path / "images", 240, (1200, 900))
    (tmp_path / "array").mkdir()
    target, output = tmp_path / "array" / "t.tar", tmp_path / "output"
    with running_slurm(tmp_path_factory.mktemp("slurm")) as slurm:
        words = ("--array=1-4", "--cpus-per-task=1", f"--output={output}", "--parsable")
        job = slurm.run("sbatch", *words, str(SCRIPT), str(images), str(target), *OPTIONS)
        number = kill_a_part(target.with_name("t.tar.partial"))
        while slurm.run("squeue", "-h", "-t", "R,CG", "-j", f"{job}_{number}"):
            time.sleep(0.1)
        slurm.run("scontrol", "requeue", f"{job}_{number}")
        slurm.wait_for(job)
        assert "Restarts=1" in slurm.run("scontrol", "show", "job", f"{job}_{number}")
    assert digests(tmp_path / "array") == packed_at_once(images, tmp_path / "one"), output.read_text()


def kill_a_part(partial: Path, seconds: float = 60) -> int:
    """Kill a process in the middle of a part; return the part's number."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for lock in partial.glob("lock-*"):
            with contextlib.suppress(OSError, ValueError):
                if any(path.stat().st_size for path in partial.glob("shard-*")):
                    os.kill(int(lock.read_text()), signal.SIGKILL)
                    return int(lock.name[5:])
        time.sleep(0.01)
    raise AssertionError("no part was found in the middle")
