"""The job script for SLURM, with the environment of an array."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from packing_runs import digests
from PIL import Image
from places import ROOT

from iofast import pack


def test_the_script_in_the_environment_of_an_array(tmp_path: Path) -> None:
    images, target, options = tmp_path / "images", tmp_path / "t.tar", ("--resize=64", "--shard-records=20")
    images.mkdir()
    for number in range(80):
        Image.effect_noise((20, 16), number + 1).convert("RGB").save(images / f"{number:04d}.jpg")
    own = {"PATH": os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))}
    own |= {"SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "2", "SLURM_ARRAY_TASK_COUNT": "2"}
    for task in "21":
        command = ["bash", str(ROOT / "examples" / "pack_slurm.sh"), images, target, *options]
        subprocess.run(command, env={**os.environ, **own, "SLURM_ARRAY_TASK_ID": task}, check=True)
    (tmp_path / "one").mkdir()
    pack(images, tmp_path / "one" / "t.tar", resize=64, shard_records=20)
    assert digests(tmp_path, "t") == digests(tmp_path / "one")
