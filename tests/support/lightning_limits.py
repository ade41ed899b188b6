"""examples/train_lightning.py with further options of the Trainer: a program for test_frameworks.py."""

import argparse
import sys

import lightning
from places import ROOT

sys.path.insert(0, str(ROOT / "examples"))
from train_lightning import Classifier, Images


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    for name in ("size", "batch_size", "devices", "max_epochs", "limit_train_batches", "overfit_batches"):
        parser.add_argument(f"--{name}", type=int)
    args = parser.parse_args()
    args.split = None
    images = Images(args)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=args.devices,
        max_epochs=args.max_epochs,
        limit_train_batches=args.limit_train_batches,
        overfit_batches=args.overfit_batches or 0,
        limit_val_batches=1,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(Classifier(len(images.dataset.classes)), datamodule=images)


if __name__ == "__main__":
    main()
