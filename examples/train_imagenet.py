"""Train ImageNet as pytorch/examples does: a ResNet, SGD, 90 epochs, the rate divided by ten after each 30.

    python -m tools.recipes.imagenet ./imagenet imagenet.lmdb --resize 256
    python examples/train_imagenet.py imagenet.lmdb
    python examples/train_imagenet.py imagenet.lmdb --epochs 1 --limit 512        # does it run here?

RandomResizedCrop and flip are `T.train`; Resize(256) and CenterCrop(224) are `T.evaluate`. On a GPU it computes in
bfloat16. For several GPUs see train_ddp.py.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from iofast import FastDataset, FastLoader
from iofast import transforms as T


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    train_set, val_set = opened(args, "train"), opened(args, "val")
    shared = {"dtype": torch.float32, "device": args.device, "memory_format": torch.channels_last}
    batches = FastLoader(train_set, args.batch_size, True, drop_last=True, transform=T.train(args.size), **shared)
    val = FastLoader(val_set, args.batch_size, transform=T.evaluate(args.size), **shared)
    model = resnet18(len(train_set.classes), args.width).to(args.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    for epoch in range(args.epochs):
        model.train()
        for images, labels in batches:
            loss = nn.functional.cross_entropy(forward(model, images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        schedule.step()
        top1, top5 = evaluate(model, val)
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, top 1 {100 * top1:.2f} %, top 5 {100 * top5:.2f} %")


def opened(args: argparse.Namespace, split: str) -> FastDataset:
    """A split, or its first images with `--limit`."""
    return FastDataset(args.dataset, split, filter=args.limit and (lambda columns: columns.index < args.limit))


def forward(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The logits, float32; computed in bfloat16 on a GPU."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
        return model(images).float()


@torch.inference_mode()
def evaluate(model: nn.Module, batches: FastLoader) -> tuple[float, float]:
    """Top-1 and top-5 accuracy."""
    model.eval()
    hits = [
        forward(model, images).topk(min(5, len(batches.dataset.classes))).indices == labels[:, None]
        for images, labels in batches
    ]
    ranks = torch.cat(hits).float().mean(0)
    return float(ranks[0]), float(ranks.sum())


class Block(nn.Module):
    """ResNet's basic block: two convolutions of 3 x 3, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.way_round: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.way_round = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.way_round(x))


def resnet18(classes: int, width: int = 64) -> nn.Module:
    """ResNet-18, so that the script needs only torch; replace it by `torchvision.models.resnet50()`."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = width
    for stage in range(4):
        outputs = width << stage
        layers += [Block(inputs, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train ImageNet as pytorch/examples does.")
    parser.add_argument("dataset", help="what `iofast pack` wrote, with the splits train and val")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224, help="pixels a side (default 224)")
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage (default 64)")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--limit", type=int, help="use only so many images of each split")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
