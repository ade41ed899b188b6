"""Train an image classifier from a packed file, or from a plain folder. A starting point: copy it and change it.

    iofast pack ./images images.lmdb --resize 256
    python examples/train.py images.lmdb --epochs 20
    python examples/train.py images.lmdb --epochs 20 --resume checkpoint.pt

Runs on a GPU in bfloat16, or on the CPU. Evaluates after each epoch if the set has a split named val, and saves model,
optimizer and epoch.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from iofast import FastDataset, FastLoader
from iofast import transforms as T


@dataclass
class Learner:
    """Model and optimizer: the content of a checkpoint."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    epoch: int = 0  # epochs finished

    def save(self, path: Path) -> None:
        """Write the checkpoint to a temporary file and rename it: a crash leaves the old one whole."""
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        partial = path.with_name(path.name + ".partial")
        torch.save({"epoch": self.epoch, **{name: part.state_dict() for name, part in parts.items()}}, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Restore everything from the checkpoint."""
        state = torch.load(path, map_location=next(self.model.parameters()).device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.epoch = state["epoch"]


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    device = torch.device(args.device)

    dataset, held_out = splits(args.dataset)
    if not dataset.classes:
        raise SystemExit(f"{args.dataset} has no classes to learn: its images lie in no class folders")
    layout = torch.channels_last  # of images and model: convolutions are faster
    shared = {"batch_size": args.batch_size, "device": device, "dtype": torch.float32, "memory_format": layout}
    batches = FastLoader(dataset, shuffle=True, seed=args.seed, drop_last=True, transform=T.train(args.size), **shared)
    val = FastLoader(held_out, transform=T.evaluate(args.size), **shared) if held_out else None

    model = network(len(dataset.classes)).to(device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-5)
    steps = args.epochs * len(batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step / steps))
    learner = Learner(model, optimizer, schedule)
    if args.resume:
        learner.load(args.resume)

    while learner.epoch < args.epochs:
        batches.set_epoch(learner.epoch)  # sets order and crops, so a resumed run gets the same batches
        loss, speed = train(learner, batches)
        line = f"epoch {learner.epoch}/{args.epochs}: loss {loss:.3f}, {speed:,.0f} images/s"
        print(line if val is None else f"{line}, accuracy {100 * evaluate(model, val):.1f} %")
        learner.save(args.checkpoint)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train an image classifier from a packed file or a folder.")
    parser.add_argument("dataset", help="what `iofast pack` wrote, or a folder of class folders")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="pixels a side (default 224)")
    parser.add_argument("--lr", type=float, default=0.2, help="peak of the learning rate (default 0.2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"), help="where to save after each epoch")
    parser.add_argument("--resume", type=Path, help="continue from this checkpoint")
    return parser.parse_args()


def splits(path: str) -> tuple[FastDataset, FastDataset | None]:
    """The images to train on, and those to evaluate with, if any."""
    names = FastDataset(path, split="all").manifest.splits
    if "train" not in names:
        return FastDataset(path, split="all"), None
    return FastDataset(path, split="train"), FastDataset(path, split="val") if "val" in names else None


def network(classes: int) -> nn.Module:
    """A small residual network, so that the script needs nothing but torch. Put your own here."""
    widths = (32, 64, 128, 256)
    stem = [nn.Conv2d(3, widths[0], 7, 4, 3, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
    stages = [Block(inputs, outputs) for inputs, outputs in pairwise(widths)]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


class Block(nn.Module):
    """Two convolutions with a shortcut; halves height and width."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.way_round = nn.Sequential(nn.AvgPool2d(2, ceil_mode=True), nn.Conv2d(inputs, outputs, 1, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.way_round(x))


def forward(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The logits, float32; computed in bfloat16 on a GPU."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
        return model(images).float()


def rate(done: float) -> float:
    """The learning rate as a share of its peak after a share `done` of all steps: up, then down."""
    return min(done / 0.1, (1 - done) / 0.9)


def train(learner: Learner, batches: FastLoader) -> tuple[float, float]:
    """One epoch: the mean loss, and images per second."""
    learner.model.train()
    total = torch.zeros((), device=next(learner.model.parameters()).device)  # read once: reading waits for the GPU
    start, seen = time.perf_counter(), 0
    for images, labels in tqdm(batches, desc=f"epoch {learner.epoch + 1}", unit="batch", leave=False):
        loss = nn.functional.cross_entropy(forward(learner.model, images), labels, label_smoothing=0.1)
        learner.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        learner.optimizer.step()
        learner.schedule.step()
        total += loss.detach()
        seen += len(images)
    learner.epoch += 1
    return float(total) / len(batches), seen / (time.perf_counter() - start)


@torch.inference_mode()
def evaluate(model: nn.Module, batches: FastLoader) -> float:
    """The share of images that the model classifies correctly."""
    model.eval()
    hits = [forward(model, images).argmax(1) == labels for images, labels in batches]
    return float(torch.cat(hits).float().mean())


if __name__ == "__main__":
    main()
