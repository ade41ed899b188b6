"""What augmentation costs: recipes through FastLoader, beside torchvision v2 in a DataLoader, and each operation alone.

python -m benchmarks.bench_recipes [--photos FOLDER] [--rounds 5]
packs the photographs with `iofast pack --resize 256` and runs all recipes in turn: whole epochs from the page cache in
two threads, and torchvision's, if it is installed, on plain files of the same pictures in two worker processes. Then
each operation by itself, on one thread, 224 x 224 pixels.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import measure, photographs
from benchmarks.bench_load import BATCH, WORKERS, fast, plain, rate
from benchmarks.peers import own_functions, vision
from iofast import FastDataset, FastLoader, kernel
from iofast import transforms as T
from iofast.transforms.warps import turned, warp
from iofast.work import NUMBERS, Edge, Step, no_work

EPOCH = 3_000  # images
THEIR_EPOCH = 600
CROP: list[T.Transform] = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
END = T.Normalize.imagenet()
THREE = T.RandomChoice([T.Grayscale(), T.Solarize(128 / 255), T.GaussianBlur(17, (0.1, 2.0))])
PLAIN = "plain, uint8"
# by name: what follows the crop, the dtype, and what torchvision's recipe is called
RECIPES: dict[str, tuple[Any, torch.dtype, str | None]] = {
    PLAIN: ([], torch.uint8, None),
    "normalised, float32": ([END], torch.float32, vision.FLOAT),
    "normalised, bfloat16": ([END], torch.bfloat16, None),
    "normalised, float16": ([END], torch.float16, None),
    "ColorJitter(0.4, 0.4, 0.4, 0.1), float32": ([T.ColorJitter(0.4, 0.4, 0.4, 0.1), END], torch.float32, "jitter"),
    "rand-m9-mstd0.5-inc1 and RandomErasing, float32": (
        [T.timm_policy("rand-m9-mstd0.5-inc1"), END, T.RandomErasing(0.25, value="random")],
        torch.float32,
        "rand",
    ),
    "TrivialAugmentWide, float32": ([T.TrivialAugmentWide(interpolation="bilinear"), END], torch.float32, "wide"),
    "3-Augment, float32": ([THREE, END], torch.float32, "three"),
    "AutoAugment, float32": ([T.AutoAugment(), END], torch.float32, None),
    "DINO's 2 + 8 crops, float32": (T.dino(), torch.float32, "dino"),
}
SIDE, COUNT = 224, 64


def steps() -> dict[str, tuple[Step, list[float]]]:
    """One step of each kind, and its numbers."""
    middle = np.array([SIDE / 2])
    matrix = [float(np.ravel(each)[0]) for each in turned(np.array([20.0]), middle, middle)]
    linear = warp(matrix, 1, (0, 0, 0))[0].tolist()
    return {
        "brightness": (Step.BRIGHTNESS, [1.3]),
        "contrast": (Step.CONTRAST, [1.3]),
        "saturation": (Step.SATURATION, [1.3]),
        "hue": (Step.HUE, [0.1]),
        "solarize": (Step.SOLARIZE, [128]),
        "posterize": (Step.POSTERIZE, [4]),
        "autocontrast": (Step.AUTOCONTRAST, []),
        "equalize": (Step.EQUALIZE, []),
        "sharpness": (Step.SHARPNESS, [1.9]),
        "blur (reach 8, sigma 1)": (Step.BLUR, [1, 8, 1, 8]),
        "turn, nearest": (Step.WARP_NEAREST, linear),
        "turn, bilinear": (Step.WARP_BILINEAR, linear),
        "flip, up and down": (Step.FLIP, [0, 1]),
        "channels in another order": (Step.PERMUTE, [3]),
        "gray as Pillow's": (Step.LUMA, []),
        "shift with reflection": (Step.PAD, [-4, -4, SIDE, SIDE, Edge.REFLECT]),
    }


def alone(images: np.ndarray[Any, Any], step: Step, own: list[float]) -> Callable[[], float]:
    """Microseconds of the kernel for one image, with what goes in and out of it."""
    context, out = kernel.Context(kernel.DecodeOptions()), np.empty_like(images)
    numbers = np.zeros((COUNT, 1, NUMBERS), np.float32)
    numbers[:, 0, : len(own)] = own
    one = replace(no_work(COUNT), steps=np.full((COUNT, 1), step, np.int8), numbers=numbers)
    finish = kernel.Finish(one, np.zeros((2, 3), np.float32), np.zeros((0, 3), np.float32), "uint8")

    def run() -> float:
        start = time.perf_counter()
        kernel.finish_batch(context, images, finish, out)
        return (time.perf_counter() - start) / COUNT * 1e6

    return run


def theirs(call: Callable[[], Any]) -> Callable[[], float]:
    """Microseconds of torchvision for one image, on one thread."""

    def run() -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        start = time.perf_counter()
        for _ in range(20):
            call()
        spent = time.perf_counter() - start
        torch.set_num_threads(before)
        return spent / 20 * 1e6

    return run


def operations(rounds: int) -> str:
    """A table of what each operation takes."""
    rng = np.random.default_rng(0)
    images = np.repeat(np.repeat(rng.integers(0, 256, (COUNT, SIDE // 8, SIDE // 8, 3), np.uint8), 8, 1), 8, 2)
    images += rng.integers(0, 24, images.shape, np.uint8)
    peers = vision.functions(np.ascontiguousarray(np.moveaxis(images[0], -1, 0)))
    rows = []
    empty = alone(images, Step.NOTHING, [])
    for name, (step, own) in steps().items():
        contenders = {"ours": alone(images, step, own), "nothing": empty}
        if name in peers:
            contenders["torchvision"] = theirs(peers[name])
        for run in contenders.values():
            run()
        figures = measure.in_turn(contenders, 3 * rounds)
        took = statistics.median(a - b for a, b in zip(figures["ours"], figures["nothing"], strict=True))
        other = statistics.median(figures["torchvision"]) if name in peers else None
        rows.append([name, f"{took:.0f}", *([f"{other:,.0f}", f"{other / took:.0f}×"] if other else ["", ""])])
    return measure.table(("µs per image", "iofast", "torchvision v2", ""), rows)


def recipes(photos: Path, folder: Path, rounds: int) -> tuple[str, measure.Figures]:
    """A table of images a second."""
    container = photographs.pack(photographs.link(photos, folder / "copies", EPOCH), folder / "packed.lmdb")
    _, files = plain(container, folder)
    # their workers first: a fork makes every page of this process copy-on-write
    others = {
        f"{name}: torchvision": rate(vision.loader(files[:THEIR_EPOCH], peer, BATCH // 4, WORKERS))
        for name, (_, _, peer) in RECIPES.items()
        if peer is not None and vision.v2() is not None
    }
    contenders = {name: ours(container, after, dtype) for name, (after, dtype, _) in RECIPES.items()} | others
    figures = measure.in_turn(contenders, rounds)
    rows = []
    for name in RECIPES:
        other = f"{name}: torchvision"
        them = ["", ""]
        if other in figures:
            them = [measure.spread(figures[other]), f"{measure.ratio(figures, name, other):.1f}×"]
        rows.append([name, measure.spread(figures[name]), f"{measure.ratio(figures, name, PLAIN):.2f}", *them])
    return measure.table(("images/s", "FastLoader", "of plain", "torchvision v2", "times"), rows), figures


def ours(container: Path, after: Any, dtype: torch.dtype) -> Callable[[], float]:
    """FastLoader with one recipe."""
    if not isinstance(after, T.Views):
        return fast(container, [*CROP, *after], dtype=dtype)
    dataset = FastDataset(container, indices=np.arange(THEIR_EPOCH))
    options: dict[str, Any] = {"shuffle": True, "num_workers": WORKERS, "transform": after, "dtype": dtype}
    return rate(FastLoader(dataset, BATCH // 4, **options))


def functions(container: Path, rounds: int) -> str:
    """A table of ColorJitter in functions of a user's own."""
    ours = "T.ColorJitter in the transform"
    contenders = {ours: fast(container, [*CROP, T.ColorJitter(*own_functions.JITTER)], dtype=torch.float32)}
    for name, option in own_functions.functions().items():
        dataset = FastDataset(container, indices=np.arange(THEIR_EPOCH))
        options: dict[str, Any] = {"transform": CROP, "dtype": torch.float32, "num_workers": WORKERS, **option}
        contenders[name] = rate(FastLoader(dataset, BATCH // 4, shuffle=True, **options))
    figures = measure.in_turn(contenders, rounds)
    rows = [[name, measure.spread(figures[name]), f"{measure.ratio(figures, name, ours):.2f}"] for name in contenders]
    return measure.table(("ColorJitter(0.4, 0.4, 0.4, 0.1)", "images/s", "of ours"), rows)


def main() -> None:
    arguments = measure.arguments(__doc__, rounds=5)
    with photographs.workplace(arguments.photos) as (folder, photos):
        table, figures = recipes(photos, folder, arguments.rounds)
        others = functions(folder / "packed.lmdb", arguments.rounds)
    page = f"""# What augmentation costs

RandomResizedCrop(224), RandomHorizontalFlip, then what is named, in batches of {BATCH}; {arguments.rounds} rounds in
turn, median (least – most). {photographs.kind(arguments.photos)}, packed at a short side of 256 pixels. FastLoader has
{WORKERS} threads, torchvision v2 a DataLoader of {WORKERS} worker processes on plain files of the same pictures
(decoded by Pillow, then uint8 tensors; RandAugment with its own strengths).

{table}

The same operation by other libraries, in functions that the loader calls:

{others}

Each operation by itself, one thread, {SIDE} × {SIDE} pixels, without what goes in and out:

{operations(arguments.rounds)}
"""
    measure.publish("recipes", page, arguments.output, figures)


if __name__ == "__main__":
    main()
