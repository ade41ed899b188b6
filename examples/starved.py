"""One training with two loaders: from original photographs, where it starves, and from a packed file.

    python examples/starved.py ./images                       # torch's DataLoader, Pillow
    iofast pack ./images images.lmdb --resize 256
    python examples/starved.py images.lmdb --loader fast
    iofast monitor -- python examples/starved.py ./images     # what it waits for, and what to change

The network is small on purpose: it stands for a fast GPU beside few processor cores.
"""

import argparse
from itertools import chain, islice, repeat
from time import perf_counter

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from iofast import FastDataset, FastLoader
from iofast import transforms as T

SIDE, CLASSES = 224, 1000


def main() -> None:
    parser = argparse.ArgumentParser(description="Does this training wait for its data?")
    parser.add_argument("dataset", help="a folder of images, or what `iofast pack` wrote")
    parser.add_argument("--loader", choices=["torch", "fast"], default="torch")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2, help="of torch's DataLoader")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    shared = {"batch_size": args.batch_size, "shuffle": True, "drop_last": True}
    if args.loader == "fast":
        dataset = FastDataset(args.dataset, split="all")
        batches = FastLoader(dataset, transform=[T.RandomResizedCrop(SIDE)], device=args.device, **shared)
    else:
        dataset = FastDataset(args.dataset, split="all", transform=cropped)
        batches = DataLoader(dataset, num_workers=args.workers, persistent_workers=True, **shared)
    layers = [nn.Conv2d(3, 32, 8, 8), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, CLASSES)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    since = perf_counter()
    for images, labels in islice(chain.from_iterable(repeat(batches)), args.steps):
        pixels = images.to(args.device, non_blocking=True).float().div_(255)
        loss = nn.functional.cross_entropy(model(pixels), labels.to(args.device) % CLASSES)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    speed = args.steps * args.batch_size / (perf_counter() - since)
    print(f"{args.loader}: {speed:,.0f} images/s, loss {loss.item():.3f}")


def cropped(image: Image.Image) -> torch.Tensor:
    """A crop of 8 to 100 % of the image, as uint8 (3, 224, 224)."""
    share = np.random.uniform(0.08, 1) ** 0.5
    width, height = max(1, round(image.width * share)), max(1, round(image.height * share))
    left, top = np.random.randint(image.width - width + 1), np.random.randint(image.height - height + 1)
    box = (left, top, left + width, top + height)
    small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR, box)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1)


if __name__ == "__main__":
    main()
