"""Train a small detector: boxes are resized and flipped with their images, which keep their own sizes.

    python examples/pack_coco.py ./coco coco.lmdb --resize 512
    python examples/train_detection.py coco.lmdb --split train --classes 80
    iofast view coco.lmdb boxes.png --boxes objects.json           # boxes over their images

The recipes are torchvision's of references/detection. A batch has a list of images (3, height, width) and a list of
their objects; boxes outside the crop are removed, with their classes. torchvision's detectors take such lists. The one
here needs only torch: for each place of a coarse grid it predicts the class and the distances of the edges.
"""

import argparse
from itertools import chain, islice, repeat
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, pad, smooth_l1_loss

from iofast import FastDataset, FastLoader
from iofast import transforms as T

STRIDE = 16  # pixels between the places of the grid


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small detector.")
    parser.add_argument("dataset", help="what pack_coco.py or `iofast pack --boxes` wrote")
    parser.add_argument("--split", help="one of the dataset's splits, where it has several")
    parser.add_argument("--boxes", default="objects.json", help="the field with the objects (default objects.json)")
    parser.add_argument("--labels", default="categories", help="their classes' list in it (default categories)")
    parser.add_argument("--classes", type=int, default=80, help="how many classes there are (default 80)")
    parser.add_argument("--recipe", choices=["hflip", "multiscale", "lsj"], default="multiscale")
    parser.add_argument("--size", type=int, default=1024, help="pixels a side, of lsj (default 1024)")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer (default 32)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = FastLoader(
        FastDataset(args.dataset, args.split, fields=["image", args.boxes]),
        args.batch_size,
        shuffle=True,
        drop_last=True,
        transform=[*resized(args.recipe, args.size), T.RandomHorizontalFlip(), T.Normalize.imagenet()],
        targets={args.boxes: "boxes"},
        ragged="list",
        dtype=torch.float32,
        device=args.device,
    )
    model = Detector(args.classes, args.width).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    for step, batch in enumerate(islice(chain.from_iterable(repeat(loader)), args.steps), start=1):
        scores, edges = model(padded(list(batch["image"])))
        wanted = [goals(each, scores.shape[1:], args) for each in batch[args.boxes]]
        classes, distances = (torch.stack(each).to(args.device) for each in zip(*wanted, strict=True))
        inside = classes.amax(1) > 0
        objects = max(1, int(inside.sum()))
        named = binary_cross_entropy_with_logits(scores, classes, reduction="sum") / objects
        placed = smooth_l1_loss(edges.movedim(1, -1)[inside], distances.movedim(1, -1)[inside], reduction="sum")
        loss = named + placed / objects
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step in (1, args.steps) or step % 50 == 0:
            boxes = sum(len(each["boxes"]) for each in batch[args.boxes])
            print(f"step {step}: loss {loss.item():.3f} ({len(wanted)} images, {boxes} boxes)")


def resized(recipe: str, size: int | None) -> list[T.Transform]:
    """What torchvision's recipe of this name does before the flip."""
    if recipe == "lsj":
        size = size or 1024
        return [T.ScaleJitter(size), T.RandomCrop(size, pad_if_needed="end", fill=(123 / 255, 117 / 255, 104 / 255))]
    return [T.RandomShortestSize(range(480, 801, 32), 1333)] if recipe == "multiscale" else []


def padded(images: list[torch.Tensor]) -> torch.Tensor:
    """Images as one batch (N, 3, height, width), with zeros to the right and below; sides are multiples of `STRIDE`."""
    height, width = (max(-(-image.shape[side] // STRIDE) * STRIDE for image in images) for side in (1, 2))
    return torch.stack([pad(each, (0, width - each.shape[2], 0, height - each.shape[1])) for each in images])


def goals(found: dict[str, Any], shape: tuple[int, ...], args: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """The targets for one image: classes (classes, h, w), and distances (4, h, w) in steps of the grid.

    A place belongs to the smallest box that it lies in.
    """
    count, height, width = shape
    classes, distances = torch.zeros(count, height, width), torch.zeros(4, height, width)
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    objects = zip(found["boxes"], found[args.labels], strict=True)
    area = lambda box: (box[2] - box[0]) * (box[3] - box[1])  # noqa: E731
    for box, label in sorted(objects, key=lambda each: area(each[0]), reverse=True):
        left, top, right, bottom = (edge / STRIDE for edge in box)
        sides = torch.stack([x - left, y - top, right - x, bottom - y])
        inside = sides.amin(0) > 0
        classes[:, inside], distances[:, inside] = 0.0, sides[:, inside]
        classes[label, inside] = 1.0
    return classes, distances


class Detector(nn.Module):
    """For each place of the grid a logit per class and the distances of four edges. Put your own here."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, width), (width, 2 * width), (2 * width, 4 * width), (4 * width, 4 * width)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.GroupNorm(4, outputs), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.scores = nn.Conv2d(4 * width, classes, 3, 1, 1)
        self.edges = nn.Conv2d(4 * width, 4, 3, 1, 1)
        nn.init.constant_(self.scores.bias, -4.0)  # start with no objects: few places have one

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.body(images)
        return self.scores(x), self.edges(x).exp()


if __name__ == "__main__":
    main()
