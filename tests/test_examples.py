"""Examples that need no framework, as a user runs them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from kernel_images import jpeg, photo

from iofast import open_writer

EXAMPLES = Path(__file__).parent.parent / "examples"
PHASES, STARVED = EXAMPLES / "phases.py", EXAMPLES / "starved.py"


def imported() -> ModuleType:
    spec = importlib.util.spec_from_file_location("phases", PHASES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "weights"), [("small", 389_702), ("large", 476_137), ("tiny", 4)])
def test_networks_answer_for_the_same_patches(name: str, weights: int) -> None:
    model = imported().NETWORKS[name]()
    assert sum(parameter.numel() for parameter in model.parameters()) == weights
    with torch.device("meta"):
        images = torch.empty(8, 3, 256, 256)
    assert model.to("meta")(images).shape == (8, 2, 64, 64)


def test_phases_of_a_step_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    with open_writer(path) as writer:
        for number in range(4):
            writer.write({"jpg": jpeg(photo(320, 256, number)), "cls": number})
    command = [sys.executable, str(PHASES), str(path), "--network=tiny", "--steps=6", "--batch-size=2", "--device=cpu"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "tiny: 4 weights, loss" in run.stdout
    assert all(f"{phase} " in run.stdout for phase in ("forward", "loss", "backward", "optimizer"))


@pytest.mark.parametrize("loader", ["torch", "fast"])
def test_one_training_is_fed_in_two_ways(tmp_path: Path, loader: str) -> None:
    for number in range(8):
        folder = tmp_path / "images" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(jpeg(photo(320, 256, number)))
    command = [sys.executable, str(STARVED), str(tmp_path / "images"), f"--loader={loader}", "--steps=3"]
    command += ["--batch-size=4", "--workers=1", "--device=cpu"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{loader}: " in run.stdout
    assert "images/s, loss " in run.stdout
