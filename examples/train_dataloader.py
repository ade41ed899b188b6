"""FastDataset in torch's own DataLoader, or in torchdata's StatefulDataLoader, which resumes in mid-epoch.

    iofast pack ./images images.lmdb --resize 256
    python examples/train_dataloader.py images.lmdb --steps 1000 --stateful
    python examples/train_dataloader.py images.lmdb --steps 2000 --stateful --resume

For code that needs a DataLoader, or has transforms of its own: any callable on PIL images works.
FastLoader does the same work faster, and needs no worker processes.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from iofast import FastDataset


def main() -> None:
    parser = argparse.ArgumentParser(description="Train from torch's or torchdata's loader.")
    parser.add_argument("dataset", help="what `iofast pack` wrote, or a folder of class folders")
    parser.add_argument("--split", help="one of the dataset's splits, where it has several")
    parser.add_argument("--stateful", action="store_true", help="torchdata's StatefulDataLoader: resumes in mid-epoch")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps in all (default 100)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--num-workers", type=int, default=2, help="worker processes (default 2)")
    parser.add_argument("--size", type=int, default=224, help="pixels a side (default 224)")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"), help="where to save at the end")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    args = parser.parse_args()

    dataset = FastDataset(args.dataset, args.split, transform=partial(prepared, size=args.size))
    torch.manual_seed(0)
    # Its order is a function of (seed, epoch). With shuffle=True a StatefulDataLoader resumes exactly up to the end of
    # the epoch, and continues in another order. For several ranks leave num_replicas and rank out.
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, seed=0)
    shared: dict[str, Any] = {"sampler": sampler, "num_workers": args.num_workers, "drop_last": True}
    if args.stateful:
        from torchdata.stateful_dataloader import StatefulDataLoader

        batches = StatefulDataLoader(dataset, args.batch_size, **shared)
    else:
        batches = DataLoader(dataset, args.batch_size, **shared)

    layers = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]  # put your own here
    model = nn.Sequential(*layers, nn.Linear(32, len(dataset.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = 0
    if args.resume:
        state = torch.load(args.checkpoint, weights_only=False)  # torchdata keeps more than tensors and numbers
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        if args.stateful:
            batches.load_state_dict(state["loader"])

    while step < args.steps:
        sampler.set_epoch(step // len(batches))
        for images, labels in batches:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == args.steps or step % len(batches) == 0:
                print(f"step {step}: loss {loss.item():.3f}")
            if step == args.steps:
                break
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer}
    if args.stateful:
        parts["loader"] = batches
    torch.save({"step": step} | {name: part.state_dict() for name, part in parts.items()}, args.checkpoint)


def prepared(image: Image.Image, size: int) -> torch.Tensor:
    """PIL image -> float tensor (3, size, size) in [0, 1]. Put torchvision's transforms here."""
    resized = image.resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1).float() / 255


if __name__ == "__main__":
    main()
