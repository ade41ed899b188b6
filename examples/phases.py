"""Why is the smaller network slower? Train one of three and see which phase of a step takes the time.

    iofast pack ./images images.lmdb --resize 256
    python examples/phases.py images.lmdb --network small
    python examples/phases.py images.lmdb --network large      # more weights, and faster: it halves the image first
    python examples/phases.py images.lmdb --network tiny       # next to no arithmetic, in thousands of operations
    iofast monitor -- python examples/phases.py images.lmdb --network small

Each learns which parts of an image are brighter than the rest, so it needs no labels. A GPU works asynchronously, so
the time between two lines of Python does not measure the work between them: the GPU itself times the phases of
`iofast.watch`.
"""

from __future__ import annotations

import argparse
from itertools import chain, islice, repeat

import torch
from torch import nn

from iofast import FastDataset, FastLoader, watch
from iofast import transforms as T

SIDE, PATCH = 256, 4  # the networks answer for patches of 4 x 4 pixels


class Large(nn.Module):
    """Two branches over an image that the first convolution has halved: 476,137 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 50, 4, stride=2, padding=1), nn.ReLU())
        self.wide = nn.Sequential(
            nn.Conv2d(50, 40, 15, padding=7),
            nn.ReLU(),
            nn.Conv2d(40, 25, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(25, 25, 2, stride=2),
        )
        self.short = nn.Conv2d(50, 15, 4, stride=2, padding=1)
        self.head = nn.Conv2d(40, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(torch.cat((self.wide(x), self.short(x)), dim=1))


class Tiny(nn.Module):
    """A weight a patch, applied row by row: every operation ends before Python launches the next."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), 0.1))
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = nn.functional.avg_pool2d(x, PATCH).mean(dim=1)  # (N, 64, 64)
        rows = [
            torch.stack([image[row] * self.weight[0] + self.bias[0], image[row] * self.weight[1] + self.bias[1]])
            for image in patches
            for row in range(patches.shape[1])
        ]
        return torch.stack(rows).view(len(x), patches.shape[1], 2, patches.shape[2]).transpose(1, 2)


def small() -> nn.Module:
    """Four convolutions, the large one of them at full resolution: 389,702 weights."""
    return nn.Sequential(
        nn.Conv2d(3, 30, 4, padding=2),
        nn.ReLU(),
        nn.Conv2d(30, 50, 16, padding=7),
        nn.ReLU(),
        nn.Conv2d(50, 20, 2, stride=2),
        nn.ReLU(),
        nn.Conv2d(20, 2, 2, stride=2),
    )


NETWORKS = {"small": small, "large": Large, "tiny": Tiny}


def brighter(images: torch.Tensor) -> torch.Tensor:
    """1 for each patch that is brighter than its image's mean, int64 (N, 64, 64)."""
    patches = nn.functional.avg_pool2d(images.mean(dim=1, keepdim=True), PATCH).squeeze(1)
    return (patches > patches.mean(dim=(1, 2), keepdim=True)).long()


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    loader = FastLoader(
        FastDataset(args.dataset, split="all"),
        args.batch_size,
        shuffle=True,
        drop_last=True,
        transform=[T.RandomResizedCrop(SIDE), T.Normalize.imagenet()],
        device=args.device,
        dtype=torch.float32,
    )
    model = NETWORKS[args.network]().to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    meter = watch(loader)
    for images, _ in islice(chain.from_iterable(repeat(meter)), args.steps):
        with meter.step("forward"):
            answers = model(images)
        with meter.step("loss"):
            loss = nn.functional.cross_entropy(answers, brighter(images))
        with meter.step("backward"):
            loss.backward()
        with meter.step("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    weights = sum(parameter.numel() for parameter in model.parameters())
    print(f"{args.network}: {weights:,} weights, loss {loss.item():.3f}")
    print(meter.stats)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Which phase of a training step does the time go into?")
    parser.add_argument("dataset", help="what `iofast pack` wrote, or a folder of images")
    parser.add_argument("--network", choices=list(NETWORKS), default="small")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
