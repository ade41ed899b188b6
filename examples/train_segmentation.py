"""Train a small network that classifies each pixel: masks are scaled, cropped and flipped with their images.

    iofast pack ade20k.csv ade20k.lmdb --mask-column seg.png --resize 512   # its columns: path, seg.png, split
    python examples/train_segmentation.py ade20k.lmdb --classes 151
    iofast view ade20k.lmdb masks.png                              # masks over their images

The transform is torchvision's of references/segmentation. The mask of a crop is 255 outside the image, which the
loss ignores. Evaluates on the split val, or on the training images without one.
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

from iofast import FastDataset, FastLoader
from iofast import transforms as T

OUTSIDE = 255  # of a mask: no class


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a network that names each pixel.")
    parser.add_argument("dataset", help="what `iofast pack` wrote with masks")
    parser.add_argument("--mask", default="seg.png", help="the field with the mask (default seg.png)")
    parser.add_argument("--classes", type=int, default=21, help="0 to this, less one, are classes (default 21)")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--size", type=int, default=480, help="pixels a side of the crops (default 480)")
    parser.add_argument("--base", type=int, default=520, help="short side before scaling (default 520)")
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer (default 32)")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    names = list(FastDataset(args.dataset, "all").manifest.splits)
    train = loader(args, "train" if "train" in names else "all", augmented(args.size, args.base))
    # of one size, so that evaluation has batches too
    exact = [T.Resize((args.size, args.size)), T.Normalize.imagenet()]
    val = loader(args, next((name for name in ("val", "train") if name in names), "all"), exact)
    model = network(args.classes, args.width).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    for epoch in range(args.epochs):
        model.train()
        for batch in train:
            loss = cross_entropy(forward(model, batch["image"]), batch[args.mask].long(), ignore_index=OUTSIDE)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        right, iou = evaluate(model, val, args)
        print(
            f"epoch {epoch + 1}: loss {loss.item():.3f}, pixels right {100 * right:.1f} %, mean IoU {100 * iou:.1f} %"
        )


def augmented(size: int, base: int) -> list[T.Transform]:
    """Short side 0.5 to 2 times `base`, then a crop, padded right and below with black."""
    return [
        T.RandomResize(base // 2, 2 * base),
        T.RandomHorizontalFlip(),
        T.RandomCrop(size, pad_if_needed="end"),
        T.Normalize.imagenet(),
    ]


def loader(args: argparse.Namespace, split: str, transform: list[T.Transform]) -> FastLoader:
    """Batches of a split: dictionaries with "image" and the mask."""
    return FastLoader(
        FastDataset(args.dataset, split, fields=["image", args.mask]),
        args.batch_size,
        shuffle=True,
        transform=transform,
        targets={args.mask: f"mask:{OUTSIDE}"},
        dtype=torch.float32,
        device=args.device,
    )


def forward(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The logits, float32 (N, classes, height, width); computed in bfloat16 on a GPU."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
        coarse = model(images).float()
    return interpolate(coarse, images.shape[2:], mode="bilinear", align_corners=False)


@torch.inference_mode()
def evaluate(model: nn.Module, batches: FastLoader, args: argparse.Namespace) -> tuple[float, float]:
    """Pixel accuracy, and the mean over classes of intersection over union."""
    model.eval()
    counts = torch.zeros(args.classes**2, device=args.device)  # the confusion matrix
    for batch in batches:
        mask, named = batch[args.mask].long(), forward(model, batch["image"]).argmax(1)
        known = mask < args.classes
        counts += torch.bincount(mask[known] * args.classes + named[known], minlength=args.classes**2)
    table = counts.view(args.classes, args.classes)
    both, either = table.diagonal(), table.sum(0) + table.sum(1) - table.diagonal()
    return float(both.sum() / table.sum()), float((both / either)[either > 0].mean())


def network(classes: int, width: int) -> nn.Module:
    """Convolutions of growing dilation, at an eighth of the resolution. Put your own here."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, stride, apart in ((1, 2, 1), (2, 2, 1), (4, 2, 1), (4, 1, 2), (4, 1, 4)):
        convolution = nn.Conv2d(inputs, outputs * width, 3, stride, apart, dilation=apart, bias=False)
        layers += [convolution, nn.BatchNorm2d(outputs * width), nn.ReLU()]
        inputs = outputs * width
    return nn.Sequential(*layers, nn.Conv2d(inputs, classes, 1))


if __name__ == "__main__":
    main()
