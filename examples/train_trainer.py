"""Train with the Trainer of Hugging Face transformers. Its checkpoints have the loader's state.

    iofast pack ./images images.lmdb --resize 256
    torchrun --standalone --nproc-per-node 2 examples/train_trainer.py images.lmdb --steps 1000
    torchrun --standalone --nproc-per-node 2 examples/train_trainer.py images.lmdb --steps 2000 --resume

The Trainer makes and prepares its loaders in `get_train_dataloader` and `get_eval_dataloader`, and uses their results
unchanged. On a resume it would make and skip all batches before the checkpoint; `ignore_data_skip` prevents that, and
the callback restores the loader's state instead.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from iofast import FastDataset, FastLoader
from iofast import transforms as T


class FastTrainer(Trainer):
    """A Trainer whose loaders are FastLoaders; `train_dataset` and `eval_dataset` are FastDatasets with fields."""

    size = 224

    def get_train_dataloader(self) -> FastLoader:
        options = {"shuffle": True, "drop_last": True, "transform": T.train(self.size)}
        return self._loader(self.train_dataset, self.args.train_batch_size, **options)

    def get_eval_dataloader(self, eval_dataset: FastDataset | None = None) -> FastLoader:
        dataset = eval_dataset or self.eval_dataset
        return self._loader(dataset, self.args.eval_batch_size, transform=T.evaluate(self.size))

    def _loader(self, dataset: FastDataset, batch_size: int, **options: Any) -> FastLoader:
        device = self.args.device
        return FastLoader(dataset, batch_size, dtype=torch.float32, device=device, map_batch=as_inputs, **options)


def as_inputs(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The model's inputs. The label -100 of filling in the last batch counts in no loss and no metric."""
    valid = batch["valid"].to(batch["label"].device)
    return {"pixel_values": batch["image"], "labels": batch["label"].where(valid, -100)}


class LoaderState(TrainerCallback, ExportableState):
    """Saves the loader's state in the Trainer's checkpoints, and restores it when training resumes."""

    def __init__(self) -> None:
        self.loader: FastLoader | None = None

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **about: Any) -> None:
        self.loader = about["train_dataloader"]
        saved = state.stateful_callbacks[type(self).__name__]["attributes"]
        if saved:
            self.loader.load_state_dict(saved)

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {} if self.loader is None else self.loader.state_dict()}


class Classifier(nn.Module):
    """A small convolutional network. Put your own here."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.network = nn.Sequential(*layers, nn.Linear(32, classes))

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.network(pixel_values)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def accuracy(outcome: Any) -> dict[str, float]:
    real = outcome.label_ids >= 0
    hits = outcome.predictions.argmax(1)[real] == outcome.label_ids[real]
    return {"accuracy": float(np.mean(hits)), "images": int(real.sum())}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with the Trainer of Hugging Face transformers.")
    parser.add_argument("dataset", help="what `iofast pack` wrote, or a folder of class folders")
    parser.add_argument("--split", help="one of the dataset's splits, where it has several")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps in all (default 100)")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints (default 50)")
    parser.add_argument("--batch-size", type=int, default=64, help="images per step and rank (default 64)")
    parser.add_argument("--size", type=int, default=224, help="pixels a side (default 224)")
    parser.add_argument("--cpu", action="store_true", help="leave the GPUs alone")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="folder to save in")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    args = parser.parse_args()

    dataset = FastDataset(args.dataset, args.split, fields=["image", "label"])
    settings = TrainingArguments(
        output_dir=str(args.checkpoints),
        max_steps=args.steps,
        save_steps=args.save_every,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=args.batch_size,
        learning_rate=1e-3,
        use_cpu=args.cpu,
        ignore_data_skip=True,
        report_to="none",
    )
    torch.manual_seed(0)
    trainer = FastTrainer(
        Classifier(len(dataset.classes)),
        settings,
        train_dataset=dataset,
        eval_dataset=dataset,
        compute_metrics=accuracy,
        callbacks=[LoaderState()],
    )
    trainer.size = args.size
    trainer.train(resume_from_checkpoint=args.resume)
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
