"""Train a model of timm with timm's augmentation, optimizer, schedule and checkpoint format, as its train.py does.

    iofast pack ./images images.lmdb --resize 256
    torchrun --standalone --nproc-per-node 2 examples/train_timm.py images.lmdb --epochs 90 --mixup 0.8 --cutmix 1.0
    … and the same with --resume continues from the checkpoint

FastLoader replaces `create_loader`, with the work of timm's transform, collate function, prefetcher and mixup (as with
`--no-prefetcher` in train.py). `--aa`, `--reprob` and `--mixup` are train.py's. In timm's own train.py the lines about
`loader_train.sampler` may stay; for a resume in mid-epoch, which timm does not have, `enumerate(loader)` becomes
`enumerate(loader, start=loader.batch)`.
"""

import argparse
import math
from pathlib import Path

import timm
import torch
from timm.data import resolve_data_config
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import init_distributed_device, is_primary
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from iofast import FastDataset, FastLoader
from iofast import transforms as T


def main() -> None:
    args = arguments()
    device = init_distributed_device(args)  # torchrun's ranks, or this process alone
    try:
        train(args, device)
    finally:
        if args.distributed:
            distributed.destroy_process_group()


def train(args: argparse.Namespace, device: torch.device) -> None:
    dataset = FastDataset(args.dataset, args.split)
    torch.manual_seed(0)  # every rank begins with the same weights
    model = timm.create_model(args.model, num_classes=len(dataset.classes)).to(device)
    loader, held_out = loaders(args, dataset, resolve_data_config(model=model), device)
    optimizer = create_optimizer_v2(model, "momentum", lr=args.lr)
    schedule, epochs = create_scheduler_v2(
        optimizer, num_epochs=args.epochs, step_on_epochs=False, updates_per_epoch=len(loader)
    )
    if args.resume:
        timm.models.resume_checkpoint(model, str(args.checkpoint), optimizer)
        loader.load_state_dict(torch.load(args.checkpoint, weights_only=True)["loader"])
    update = loader.epoch * len(loader) + loader.batch  # also after a resume within an epoch
    last = min(epochs * len(loader), args.steps or epochs * len(loader))

    trained = DistributedDataParallel(model) if args.distributed else model
    while update < last:
        first = loader.epoch * len(loader)
        for batch, (images, labels) in enumerate(loader, start=loader.batch):  # not 0 after a resume
            # labels are classes, or shares of them if images were mixed
            loss = nn.functional.cross_entropy(trained(images), labels, label_smoothing=args.smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            update = first + batch + 1
            schedule.step_update(update)
            if update == last:
                break
        top1 = validate(model, held_out, device)
        if is_primary(args):
            print(f"update {update}: loss {loss.item():.3f}, accuracy {100 * top1:.1f} %")
            save(args.checkpoint, model, optimizer, loader)


def loaders(
    args: argparse.Namespace, dataset: FastDataset, config: dict[str, object], device: torch.device
) -> tuple[FastLoader, FastLoader]:
    """For training and evaluation, with the model's own size, interpolation, mean and standard deviation."""
    size = args.size or config["input_size"][-1]
    colours = {"mean": config["mean"], "std": config["std"]}
    crop = T.timm_train(size, auto_augment=args.aa or None, re_prob=args.reprob, re_mode=args.remode, **colours)
    center = evaluation(size, config, T.Normalize(**colours))
    shared = {"batch_size": args.batch_size, "dtype": torch.float32, "device": device}
    mixed = [*crop, *mixing(args, len(dataset.classes))]
    return (
        FastLoader(dataset, shuffle=True, drop_last=True, transform=mixed, **shared),
        FastLoader(dataset, transform=center, **shared),
    )


def evaluation(size: int, config: dict[str, object], normalize: T.Normalize) -> list[T.Transform]:
    """timm's transform for evaluation, with the model's crop_pct and crop_mode."""
    short, crop = math.floor(size / config["crop_pct"]), T.CenterCrop(size)
    if config["crop_mode"] == "border":
        resize = T.ResizeKeepRatio(short, longest=1.0, interpolation=config["interpolation"])
        crop = T.CenterCrop(size, pad_if_needed=True, fill=normalize.mean)
    else:
        sides = (short, short) if config["crop_mode"] == "squash" else short
        resize = T.Resize(sides, config["interpolation"])
    return [resize, crop, normalize]


def mixing(args: argparse.Namespace, classes: int) -> list[T.Transform]:
    """The operation of `timm.data.Mixup` with train.py's options: with both, one of them per image."""
    ways = [T.MixUp(alpha=args.mixup, num_classes=classes)] if args.mixup else []
    ways += [T.CutMix(alpha=args.cutmix, num_classes=classes)] if args.cutmix else []
    share = args.mixup_switch_prob
    return [T.RandomChoice(ways, p=[1 - share, share])] if len(ways) == 2 else ways


@torch.inference_mode()
def validate(model: nn.Module, loader: FastLoader, device: torch.device) -> float:
    """The accuracy over all ranks; each image counts once."""
    model.eval()
    counts = torch.zeros(2, device=device)
    for images, labels in loader:
        real = loader.last_valid.to(device)  # False for filling in the last batch of some ranks
        hits = (model(images).argmax(1) == labels) & real
        counts += torch.stack([hits.sum(), real.sum()])
    model.train()
    if distributed.is_initialized():
        distributed.all_reduce(counts)
    return float(counts[0] / counts[1])


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: FastLoader) -> None:
    """A checkpoint in timm's format, for `resume_checkpoint`, with the loader's state."""
    states = {"state_dict": model, "optimizer": optimizer, "loader": loader}
    torch.save({"epoch": loader.epoch, "version": 2} | {key: part.state_dict() for key, part in states.items()}, path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a model of timm.")
    parser.add_argument("dataset", help="what `iofast pack` wrote, or a folder of class folders")
    parser.add_argument("--split", help="one of the dataset's splits, where it has several")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, help="stop after so many updates in all, before the epochs are over")
    parser.add_argument("--batch-size", type=int, default=64, help="images per update and rank (default 64)")
    parser.add_argument("--size", type=int, help="pixels a side (default: the model's)")
    parser.add_argument("--aa", default="rand-m9-mstd0.5-inc1", help="timm's policy (default %(default)s); '' for none")
    parser.add_argument("--reprob", type=float, default=0.25, help="how often a part is erased (default 0.25)")
    parser.add_argument("--remode", default="pixel", help="what it is filled with: const, rand or pixel (default)")
    parser.add_argument("--mixup", type=float, default=0.0, help="alpha of mixup (default: none)")
    parser.add_argument("--cutmix", type=float, default=0.0, help="alpha of cutmix (default: none)")
    parser.add_argument("--mixup-switch-prob", type=float, default=0.5, help="of cutmix where both are on")
    parser.add_argument("--smoothing", type=float, default=0.1, help="of labels (default 0.1)")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"), help="where to save")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    return parser.parse_args()


if __name__ == "__main__":
    main()
