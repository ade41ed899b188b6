"""Train with Lightning. Its checkpoints have the loader's state, so a run resumes in mid-epoch.

    iofast pack ./images images.lmdb --resize 256
    python examples/train_lightning.py images.lmdb --steps 1000 --devices 2
    python examples/train_lightning.py images.lmdb --steps 2000 --devices 2 --resume

Lightning does not change a loader that is not torch's DataLoader: it inserts no DistributedSampler, and FastLoader gets
its rank itself. So make it in `train_dataloader()`, which is called when the ranks are known. Lightning sets each epoch
with `loader.sampler.set_epoch`, so `limit_train_batches` keeps the ranks in step.
"""

import argparse
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from iofast import FastDataset, FastLoader
from iofast import transforms as T


class Images(lightning.LightningDataModule):
    """The packed images. Lightning makes them in every process, once device and rank are known."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        self.dataset = FastDataset(args.dataset, args.split)

    def train_dataloader(self) -> FastLoader:
        shuffle = not self.trainer.overfit_batches  # it takes the same batches in each epoch
        return self._loader(shuffle=shuffle, drop_last=True, transform=T.train(self.args.size))

    def val_dataloader(self) -> FastLoader:
        return self._loader(transform=T.evaluate(self.args.size))

    def _loader(self, **options: object) -> FastLoader:
        device = self.trainer.strategy.root_device
        return FastLoader(self.dataset, self.args.batch_size, dtype=torch.float32, device=device, **options)


class Classifier(lightning.LightningModule):
    """A small convolutional network. Put your own here."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.network = nn.Sequential(*layers, nn.Linear(32, classes))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.network(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        images, labels = batch
        hits = self.network(images).argmax(1) == labels
        self.log("accuracy", hits.float().mean(), batch_size=len(labels), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with Lightning.")
    parser.add_argument("dataset", help="what `iofast pack` wrote, or a folder of class folders")
    parser.add_argument("--split", help="one of the dataset's splits, where it has several")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps in all (default 100)")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints (default 50)")
    parser.add_argument("--batch-size", type=int, default=64, help="images per step and rank (default 64)")
    parser.add_argument("--size", type=int, default=224, help="pixels a side (default 224)")
    parser.add_argument("--devices", type=int, default=1, help="ranks on this machine (default 1)")
    parser.add_argument("--accelerator", default="auto", help="cpu, cuda, … (default: what is there)")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="folder to save in")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    args = parser.parse_args()

    lightning.seed_everything(0)
    images = Images(args)
    checkpoints = ModelCheckpoint(args.checkpoints, filename="last", every_n_train_steps=args.save_every)
    trainer = lightning.Trainer(
        max_steps=args.steps,
        devices=args.devices,
        accelerator=args.accelerator,
        callbacks=[checkpoints],
        default_root_dir=args.checkpoints,
        logger=False,
    )
    trainer.fit(
        Classifier(len(images.dataset.classes)),
        datamodule=images,
        ckpt_path=args.checkpoints / "last.ckpt" if args.resume else None,
    )


if __name__ == "__main__":
    main()
