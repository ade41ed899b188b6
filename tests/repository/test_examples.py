"""Examples without a framework, as a user runs them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import numpy as np
import pytest
from kernel_images import jpeg, photo, save
from loader_sets import write_folder
from packing_runs import digests
from PIL import Image
from places import ROOT

from iofast import FastDataset, open_writer, pack

EXAMPLES = ROOT / "examples"


def ran(script: str, *words: object, trains: bool = True) -> str:
    """The output of an example."""
    command = [sys.executable, str(EXAMPLES / script), *map(str, words), *(["--device=cpu"] if trains else [])]
    run = forked.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=300, trains=trains)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("loader", ["torch", "fast"])
def test_one_training_with_two_loaders(tmp_path: Path, loader: str) -> None:
    images = write_folder(tmp_path / "images", [jpeg(photo(320, 256, number)) for number in range(8)])
    printed = ran("starved.py", images, f"--loader={loader}", "--steps=3", "--batch-size=4", "--workers=1")
    assert re.search(rf"{loader}: .* images/s, loss ", printed)


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


def test_train(squares: Path, tmp_path: Path) -> None:
    """The second epoch goes on from the first one's checkpoint."""
    options = ["--batch-size=4", "--size=32", f"--checkpoint={tmp_path / 'saved'}"]
    first = ran("train.py", squares, "--epochs=1", *options)
    second = ran("train.py", squares, "--epochs=2", f"--resume={tmp_path / 'saved'}", *options)
    assert re.search(r"epoch 1/1: loss [\d.]+, [\d,]+ images/s, accuracy [\d.]+ %", first)
    assert re.search(r"epoch 2/2: loss [\d.]+", second)
    assert "epoch 1/2" not in second


def test_coco(tmp_path: Path) -> None:
    """Boxes, polygons and captions follow their images; images without annotations are packed too."""
    for split, names in (("train", "ab"), ("val", "c")):
        (tmp_path / f"{split}2017").mkdir()
        for number, name in enumerate(names):
            (tmp_path / f"{split}2017" / f"{name}.jpg").write_bytes(jpeg(photo(60, 40, number)))
    images = [{"id": 90, "file_name": "a.jpg"}, {"id": 88, "file_name": "b.jpg"}]
    categories = [{"id": 90, "name": "brush"}, {"id": 1, "name": "person"}]
    crowd = {"counts": [5, 10], "size": [40, 60]}
    objects = [
        {"image_id": 90, "category_id": 90, "bbox": [2, 4, 10, 20], "iscrowd": 0, "segmentation": [[2, 4, 8, 4, 8, 9]]},
        {"image_id": 90, "category_id": 1, "bbox": [0, 0, 2, 2], "iscrowd": 1, "segmentation": crowd},
    ]
    (tmp_path / "annotations").mkdir()
    for kind, rows in (("instances", objects), ("captions", [{"image_id": 88, "caption": "a bear"}])):
        text = json.dumps({"images": images, "annotations": rows, "categories": categories})
        (tmp_path / "annotations" / f"{kind}_train2017.json").write_text(text)
    ran("pack_coco.py", tmp_path, tmp_path / "out.lmdb", "--resize=20", trains=False)
    dataset = FastDataset(tmp_path / "out.lmdb", split="train", fields=("image", "objects.json", "captions.json"))
    assert dataset.manifest.recipe["categories"] == ["person", "brush"]
    first, second = dataset[0], dataset[1]
    assert first["image"].size == (30, 20)
    assert first["objects.json"] == {
        "boxes": [[1, 2, 6, 12], [0, 0, 1, 1]],
        "categories": [1, 0],
        "iscrowd": [0, 1],
        "segmentation": [[[1, 2, 4, 2, 4, 4.5]], []],
        "rle": [None, crowd],
    }
    assert second["objects.json"]["boxes"] == first["captions.json"] == []
    assert second["captions.json"] == ["a bear"]
    assert len(FastDataset(tmp_path / "out.lmdb", split="val")) == 1


def test_dino(squares: Path) -> None:
    options = ["--size=32", "--local-size=16", "--local=3", "--width=8", "--answers=16"]
    printed = ran("train_dino.py", squares, "--steps=2", "--batch-size=4", *options)
    assert "step 2: loss " in printed
    assert all(0 < loss < 10 for loss in losses(printed))


@pytest.mark.parametrize("epochs", [2, pytest.param(12, marks=pytest.mark.slow)])  # the latter sees that it learns
def test_segmentation(squares: Path, epochs: int) -> None:
    options = ["--classes=3", "--size=48", "--base=56", "--width=8", "--batch-size=4", "--lr=0.1"]
    printed = ran("train_segmentation.py", squares, *options, f"--epochs={epochs}")
    first, *_, last = losses(printed)
    right = float(re.findall(r"pixels right ([\d.]+)", printed)[-1])
    assert 0 < right <= 100
    assert epochs == 2 or (last < first and right > 70)


@pytest.mark.parametrize(
    ("recipe", "steps"), [("lsj", 4), *(pytest.param(each, 40, marks=pytest.mark.slow) for each in ("lsj", "hflip"))]
)
def test_detection(squares: Path, recipe: str, steps: int) -> None:
    options = ["--classes=2", "--size=64", "--width=4", "--batch-size=4", "--lr=0.01"]
    printed = ran("train_detection.py", squares, "--split=train", f"--recipe={recipe}", f"--steps={steps}", *options)
    first, *_, last = losses(printed)
    assert steps == 4 or last < first
    assert "(4 images, " in printed


@pytest.mark.interop
def test_jax(squares: Path) -> None:
    pytest.importorskip("jax")
    command = [sys.executable, str(EXAMPLES / "train_jax.py"), str(squares), "--epochs=12", "--batch-size=4"]
    own = os.environ | {"JAX_PLATFORMS": "cpu"}
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
