"""Examples without a framework, as a user runs them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import forked
import numpy as np
import pytest
import torch
from kernel_images import jpeg, photo, save
from loader_sets import write_folder, write_numbered
from packing_runs import digests
from PIL import Image
from places import ROOT

from iofast import open_writer, pack

EXAMPLES = ROOT / "examples"


def imported() -> ModuleType:
    spec = importlib.util.spec_from_file_location("phases", EXAMPLES / "phases.py")
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


def test_phases_of_a_step(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "a.lmdb", [jpeg(photo(320, 256, number)) for number in range(4)])
    printed = ran("phases.py", path, "--network=tiny", "--steps=6", "--batch-size=2")
    assert "tiny: 4 weights, loss" in printed
    assert all(f"{phase} " in printed for phase in ("forward", "loss", "backward", "optimizer"))


@pytest.mark.parametrize("loader", ["torch", "fast"])
def test_one_training_with_two_loaders(tmp_path: Path, loader: str) -> None:
    images = write_folder(tmp_path / "images", [jpeg(photo(320, 256, number)) for number in range(8)])
    printed = ran("starved.py", images, f"--loader={loader}", "--steps=3", "--batch-size=4", "--workers=1")
    assert f"{loader}: " in printed
    assert "images/s, loss " in printed


def ran(script: str, path: Path, *options: str) -> str:
    """The output of an example."""
    command = [sys.executable, str(EXAMPLES / script), str(path), "--device=cpu", *options]
    run = forked.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dark pictures with a bright square, its mask and its box; the class is small or large; two splits."""
    path = tmp_path_factory.mktemp("examples") / "squares.lmdb"
    with open_writer(path, classes=["small", "large"]) as writer:
        for number in range(16):
            pixels = photo(96 + number, 80, number) // 3
            side, mask = (16, 40)[number % 2], np.zeros(pixels.shape[:2], np.uint8)
            mask[20 : 20 + side, 30 : 30 + side] = 1 + number % 2
            pixels[mask > 0] = 250
            stored = {"jpg": jpeg(pixels), "seg.png": save(Image.fromarray(mask), "PNG"), "cls": number % 2}
            objects = {"boxes": [[30, 20, 30 + side, 20 + side]], "categories": [number % 2]}
            writer.write(stored | {"objects.json": objects}, split="train" if number < 12 else "val")
    return path


def losses(printed: str) -> list[float]:
    return [float(text) for text in re.findall(r"loss ([\d.]+)", printed)]


def test_imagenet(squares: Path) -> None:
    # With 4 channels torch 2.13 alone, in channels_last, corrupts its heap on AMD processors without AVX-512.
    printed = ran("train_imagenet.py", squares, "--epochs=2", "--batch-size=4", "--size=32", "--width=8", "--limit=8")
    assert re.search(r"epoch 2: loss [\d.]+, top 1 [\d.]+ %, top 5 100.00 %", printed)
    assert len(losses(printed)) == 2


def test_dino(squares: Path) -> None:
    options = ["--size=32", "--local-size=16", "--local=3", "--width=8", "--answers=16", "--limit=8"]
    printed = ran("train_dino.py", squares, "--steps=20", "--batch-size=4", *options)
    assert "step 20: loss " in printed
    assert all(0 < loss < 10 for loss in losses(printed))


LEARNS = pytest.mark.parametrize("epochs", [2, pytest.param(12, marks=pytest.mark.slow)])


@LEARNS
def test_segmentation(squares: Path, epochs: int) -> None:
    """Two epochs; that it learns is seen in `make torture PART=grids`."""
    options = ["--classes=3", "--size=48", "--base=56", "--width=8", "--batch-size=4", "--lr=0.1"]
    printed = ran("train_segmentation.py", squares, *options, f"--epochs={epochs}")
    first, *_, last = losses(printed)
    right = float(re.findall(r"pixels right ([\d.]+)", printed)[-1])
    assert 0 < right <= 100
    assert epochs == 2 or (last < first and right > 70)


@pytest.mark.parametrize("recipe", [pytest.param("hflip", marks=pytest.mark.slow), "lsj"])
@pytest.mark.parametrize("steps", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_detection(squares: Path, recipe: str, steps: int) -> None:
    options = ["--classes=2", "--size=64", "--width=4", "--batch-size=4", "--lr=0.01"]
    printed = ran("train_detection.py", squares, "--split=train", f"--recipe={recipe}", f"--steps={steps}", *options)
    first, *_, last = losses(printed)
    assert steps == 4 or last < first
    assert "(4 images, " in printed


@pytest.mark.interop
@pytest.mark.parametrize("framework", ["jax", "keras"])
def test_other_frameworks(squares: Path, framework: str) -> None:
    pytest.importorskip("jax")
    pytest.importorskip(framework)
    command = [sys.executable, str(EXAMPLES / f"train_{framework}.py"), str(squares), "--epochs=12", "--batch-size=4"]
    own = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run([*command, "--size=64"], capture_output=True, text=True, env=own)
    assert run.returncode == 0, run.stderr
    first, *_, last = [float(text) for text in re.findall(r"loss:? ([\d.]+)", run.stdout)]
    assert last < first


@pytest.mark.interop
@pytest.mark.parametrize("cluster", ["dask", "spark"])
def test_parts_on_other_clusters(tmp_path: Path, cluster: str) -> None:
    pytest.importorskip({"dask": "distributed", "spark": "pyspark"}[cluster])
    if cluster == "spark" and shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not here")
    images = write_folder(tmp_path / "images", [jpeg(photo(64, 48, number)) for number in range(12)])
    (tmp_path / "one").mkdir()
    pack(images, tmp_path / "one" / "t.tar", resize=32)
    (tmp_path / cluster).mkdir()
    target = tmp_path / cluster / "t.tar"
    command = [sys.executable, str(EXAMPLES / f"pack_{cluster}.py"), str(images), str(target), "--parts=3", "--size=32"]
    own = {"SPARK_LOCAL_DIRS": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    own |= {"DASK_TEMPORARY_DIRECTORY": str(tmp_path), "TMPDIR": str(tmp_path)}
    own |= {"JAVA_TOOL_OPTIONS": f"-XX:-UsePerfData -Djava.io.tmpdir={tmp_path}"}
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ | own, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1])["packed"] == 12
    assert digests(tmp_path / cluster) == digests(tmp_path / "one")
