"""`make demo`: from a folder of images to a trained network, beside the same with Pillow and torch's DataLoader.

    python -m tools.demo [--folder demo] [--per-class 120] [--epochs 4]

Makes sample images, packs them with `iofast pack`, trains a small network from FastLoader and from a Pillow dataset,
prints images per second of both with the processor time that an image took, and draws augmented images with `iofast
view`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from iofast import FastDataset, FastLoader, kernel
from iofast import transforms as T
from tools import sample_photographs
from tools.pillow_folder import PillowFiles, files_by_class, normalised

SIZE = 128  # pixels a side: small, so that on two cores the network does not hide the loader
BATCH = 64
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LAYOUT = torch.channels_last  # of images and network
CORES = max(1, torch.get_num_threads())
Batches = FastLoader | DataLoader[tuple[torch.Tensor, torch.Tensor]]
_KEEPS_UP = 0.8  # of the rate of loading alone: a network that takes more waits for the loader
console = Console(highlight=False)


class Rate(NamedTuple):
    """Images per second, and milliseconds of processor time per image, of all processes."""

    images: float
    cpu_ms: float


@dataclass
class Result:
    """One way of loading: its rate without and with training, and what the network learned."""

    name: str
    loading: Rate
    training: Rate | None = None
    accuracy: float | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description="From a folder of images to a trained network.")
    parser.add_argument("--folder", type=Path, default=Path("demo"))
    parser.add_argument("--per-class", type=int, default=120, help="images of each class (default 120)")
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    images, packed = args.folder / "images", args.folder / "images.lmdb"

    say(f"1. sample images in {images}")
    shutil.rmtree(args.folder, ignore_errors=True)
    sample_photographs.make(images, args.per_class, val=max(2, args.per_class // 5))

    say(f"2. packing: iofast pack {images} {packed} --resize 256")
    iofast("pack", images, packed, "--resize", "256")
    say(f"3. what was written: iofast info {packed}")
    iofast("info", packed)

    say(f"4. training on {DEVICE}, {SIZE} x {SIZE}, {args.epochs} epochs: from the packed file, then with Pillow")
    results = compare(images, packed, args.epochs)
    say("5. result")
    console.print(table(results))
    console.print(limit(results[0]))

    sheet = args.folder / "batch.png"
    chosen = ("--split", "train", "--count", 40, "--columns", 10, "--size", SIZE, "--transform", f"train({SIZE})")
    say(f"6. augmented images, with labels: iofast view {packed} {sheet} {shlex.join(map(str, chosen))}")
    iofast("view", packed, sheet, *chosen)
    return 0


def say(text: str) -> None:
    console.print(f"\n[bold]{text}[/bold]")


def iofast(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "iofast", *map(str, arguments)], check=True)


def compare(images: Path, packed: Path, epochs: int) -> list[Result]:
    """The same network trained from both loaders; loading alone is measured from a plain folder too."""
    dataset = FastDataset(packed, split="train")
    shared = {"batch_size": BATCH, "dtype": torch.float32, "device": DEVICE, "memory_format": LAYOUT}
    options = {"shuffle": True, "drop_last": True, **shared}
    ours = FastLoader(dataset, transform=T.train(SIZE), **options)
    plain = FastLoader(FastDataset(images, split="train"), transform=T.train(SIZE), **options)
    torch.manual_seed(0)
    folder = PillowFiles(files_by_class(images / "train"), partial(normalised, size=SIZE))
    theirs = DataLoader(folder, BATCH, shuffle=True, drop_last=True, num_workers=CORES)
    loaders = {"FastLoader, packed": ours, "FastLoader, folder": plain, "Pillow, DataLoader": theirs}
    results = [Result(name, loading(loader, name)) for name, loader in loaders.items()]
    held_out = FastLoader(FastDataset(packed, split="val"), transform=T.evaluate(SIZE), **shared)
    for result, batches in ((results[0], ours), (results[2], theirs)):
        model = network(len(dataset.classes or ()))
        result.training = train(model, batches, epochs, result.name)
        result.accuracy = accuracy(model, held_out)
    return results


def loading(batches: Batches, name: str) -> Rate:
    """One epoch without a network, after one that warms caches and worker pools."""
    for _ in tqdm(batches, desc=f"{name}: warming up", leave=False):
        pass
    start, seen = now(), 0
    for images, _ in tqdm(batches, desc=f"{name}: loading alone", leave=False):
        seen += len(images)
    return rate(start, seen)


def now() -> tuple[float, float]:
    """The clock, and the processor time of this process and of workers that have ended."""
    return time.perf_counter(), sum(os.times()[:4])


def rate(start: tuple[float, float], images: int) -> Rate:
    seconds, cpu = (end - begin for end, begin in zip(now(), start, strict=True))
    return Rate(images / seconds, 1000 * cpu / images)


def network(classes: int) -> nn.Sequential:
    """The same small network every time: 45,000 parameters, about 10 million multiplications an image."""
    torch.manual_seed(0)

    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        depthwise = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False)
        return [depthwise, nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    stem = [nn.Conv2d(3, 48, 8, 8, bias=False), nn.BatchNorm2d(48), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes)]
    model = nn.Sequential(*stem, *block(48, 96, 1), *block(96, 128, 2), *block(128, 128, 1), *head)
    return model.to(DEVICE, memory_format=LAYOUT)


def train(model: nn.Module, batches: Batches, epochs: int, name: str) -> Rate:
    """Train; the rate over all epochs, loading included."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.05, total_iters=epochs * len(batches))
    model.train()
    start, seen = now(), 0
    for epoch in range(epochs):
        bar = tqdm(batches, desc=f"{name}: epoch {epoch + 1}/{epochs}", unit="batch")
        for images, labels in bar:
            loss = nn.functional.cross_entropy(model(images.to(DEVICE)), labels.to(DEVICE))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            decay.step()
            seen += len(images)
            bar.set_postfix(loss=f"{loss.item():.2f}", refresh=False)
    return rate(start, seen)


@torch.inference_mode()
def accuracy(model: nn.Module, batches: Batches) -> float:
    """The share of images whose class the network names."""
    model.eval()
    hits = [(model(images).argmax(1) == labels).float() for images, labels in batches]
    return float(torch.cat(hits).mean())


def table(results: list[Result]) -> Table:
    shown = Table(
        title="images per second",
        caption=f"{CORES} threads on {DEVICE}; kernel {kernel.backend} ({kernel.simd}), torch {torch.__version__}",
    )
    shown.add_column("from", no_wrap=True)
    for column in ("loading alone", "CPU ms each", "training", "val accuracy"):
        shown.add_column(column, justify="right", no_wrap=True)
    for row in results:
        training = "" if row.training is None else f"{row.training.images:,.0f}"
        accurate = "" if row.accuracy is None else f"{100 * row.accuracy:.0f} %"
        shown.add_row(row.name, f"{row.loading.images:,.0f}", f"{row.loading.cpu_ms:.2f}", training, accurate)
    return shown


def limit(result: Result) -> str:
    """What training from this loader waits for, in a sentence."""
    loading, training = result.loading, result.training
    assert training is not None
    if DEVICE.type == "cpu":  # both share the cores
        rest = training.cpu_ms - loading.cpu_ms
        what = "the network, which runs on the same cores" if rest > loading.cpu_ms else "loading"
        figures = f"an image takes {rest:.2f} ms of processor time in the network, {loading.cpu_ms:.2f} in the loader"
    else:
        what = "the network" if training.images < _KEEPS_UP * loading.images else "loading"
        figures = f"it takes {training.images:,.0f} images/s of the {loading.images:,.0f} that the loader makes"
    return f"Training from {result.name} is limited by {what}: {figures}."


if __name__ == "__main__":
    sys.exit(main())
