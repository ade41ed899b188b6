"""Train an image classifier from a packed file, or from a plain folder. A starting point: copy it and change it.

    iofast pack ./images images.lmdb --resize 256
    python examples/train.py images.lmdb --epochs 20
    python examples/train.py images.lmdb --epochs 20 --resume checkpoint.pt

Runs on a GPU in bfloat16, or on the CPU. Evaluates after each epoch if the set has a split named val, and saves model,
optimizer and epoch.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from iofast import FastDataset, FastLoader
from iofast import transforms as T


def main() -> None:
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
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    names = FastDataset(args.dataset, split="all").manifest.splits
    dataset = FastDataset(args.dataset, split="train" if "train" in names else "all")
    if not dataset.classes:
        raise SystemExit(f"{args.dataset} has no classes to learn: its images lie in no class folders")
    layout = torch.channels_last  # of images and model: convolutions are faster
    shared = {"batch_size": args.batch_size, "device": args.device, "dtype": torch.float32, "memory_format": layout}
    batches = FastLoader(dataset, shuffle=True, seed=args.seed, drop_last=True, transform=T.train(args.size), **shared)
    val = None
    if "val" in names:
        val = FastLoader(FastDataset(args.dataset, split="val"), transform=T.evaluate(args.size), **shared)

    model = network(len(dataset.classes)).to(args.device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-5)
    steps = args.epochs * len(batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(  # up, then down
        optimizer, lambda step: min(step / steps / 0.1, (1 - step / steps) / 0.9)
    )
    parts, first = {"model": model, "optimizer": optimizer, "schedule": schedule}, 0
    if args.resume:
        state = torch.load(args.resume, map_location=args.device, weights_only=True)
        first = state["epoch"]
        for name, part in parts.items():
            part.load_state_dict(state[name])

    for epoch in range(first, args.epochs):
        batches.set_epoch(epoch)  # sets order and crops, so a resumed run gets the same batches
        start, total = time.perf_counter(), torch.zeros((), device=args.device)  # read once: reading waits for the GPU
        model.train()
        for images, labels in tqdm(batches, desc=f"epoch {epoch + 1}", unit="batch", leave=False):
            loss = nn.functional.cross_entropy(forward(model, images), labels, label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()
        speed = len(batches) * args.batch_size / (time.perf_counter() - start)
        line = f"epoch {epoch + 1}/{args.epochs}: loss {float(total) / len(batches):.3f}, {speed:,.0f} images/s"
        print(line if val is None else f"{line}, accuracy {100 * evaluate(model, val):.1f} %")
        partial = args.checkpoint.with_name(args.checkpoint.name + ".partial")  # a crash leaves the old one whole
        torch.save({"epoch": epoch + 1, **{name: part.state_dict() for name, part in parts.items()}}, partial)
        partial.replace(args.checkpoint)


def network(classes: int) -> nn.Module:
    """A small network, so that the script needs nothing but torch. Put your own here."""
    layers: list[nn.Module] = []
    for inputs, outputs, side, stride in ((3, 32, 7, 4), (32, 64, 3, 2), (64, 128, 3, 2), (128, 256, 3, 2)):
        layers += [nn.Conv2d(inputs, outputs, side, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes))


def forward(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The logits, float32; computed in bfloat16 on a GPU."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
        return model(images).float()


@torch.inference_mode()
def evaluate(model: nn.Module, batches: FastLoader) -> float:
    """The share of images that the model classifies correctly."""
    model.eval()
    hits = [forward(model, images).argmax(1) == labels for images, labels in batches]
    return float(torch.cat(hits).float().mean())


if __name__ == "__main__":
    main()
