"""The command beside training programs on a real GPU; the same programs on the CPU among the slow tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TRAINING = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset
from iofast import watch

class Images(Dataset):
    def __len__(self):
        return 1 << 30
    def __getitem__(self, index):
        time.sleep(SECONDS)
        return torch.zeros(3, 64, 64)

if __name__ == "__main__":
    device, SECONDS, products, side = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    matrix = torch.ones(side, side, device=device)
    for number, images in enumerate(watch(DataLoader(Images(), batch_size=4, num_workers=1), device=device)):
        images = images.to(device)
        for _ in range(products):
            matrix = (matrix @ matrix).clamp_(0, 1)
        if number == 2:
            print("on", flush=True)
"""
DEVICES = [pytest.param("cuda", marks=pytest.mark.gpu), pytest.param("cpu", marks=pytest.mark.slow)]


def judged(folder: Path, device: str, seconds: float, products: int) -> dict[str, Any]:
    """What `iofast monitor --once --json` says of a training: a sample takes `seconds`, a step so many products."""
    program = folder / "train.py"
    program.write_text(TRAINING)
    side = "4096" if device == "cuda" else "512"
    command = [sys.executable, str(program), device, str(seconds), str(products), side]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
        try:
            assert training.stdout is not None
            assert training.stdout.readline() == "on\n"
            monitor = [sys.executable, "-m", "iofast", "monitor", "--once", "--json", "--pid", str(training.pid)]
            said = subprocess.run(monitor, capture_output=True, text=True, timeout=120)
        finally:
            training.kill()
    assert said.returncode == 0, said.stderr
    found: dict[str, Any] = json.loads(said.stdout)
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_a_training_that_is_starved_and_one_that_computes(device: str, tmp_path: Path) -> None:
    """On a GPU its figures are there; whose it is the driver may not say in a container."""
    starved = judged(tmp_path, device, 0.02, 1)
    assert (starved["verdict"], starved["cause"], starved["tier"]) == ("input-bound", "storage", "inside")
    assert starved["stall"]["host_wait"] is (device == "cpu")
    assert 0.5 < starved["stall"]["low"] == starved["stall"]["high"]
    computes = judged(tmp_path, device, 0.0, 40)
    assert computes["verdict"] in ("compute-bound", "memory-bound", "throttled")  # a GPU may be held at its power limit
    assert computes["stall"]["high"] < 0.1
    for found in (starved, computes) if device == "cuda" else ():
        assert [one["busy"] for one in found["devices"] if one["own"] is not False and one["busy"] is not None]
