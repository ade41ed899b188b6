"""Trains a small model by a library that has a loop of its own, and prints the losses."""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from training import Photos  # type: ignore[import-not-found]  # beside this script


class Model(torch.nn.Module):
    """Notes its losses."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, 4), torch.nn.Flatten(), torch.nn.LazyLinear(24))
        self.body(torch.zeros(1, 3, 48, 48))
        self.losses: list[float] = []

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.body(pixels)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        self.losses.append(loss.item())
        return {"loss": loss, "logits": scores}


class ByName(Dataset[Any]):
    """Samples as transformers wants them."""

    def __init__(self, photos: Photos) -> None:
        self.photos = photos

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, number: int) -> dict[str, Any]:
        pixels, label = self.photos[number]
        return {"pixels": pixels, "labels": label}


def by_accelerate(model: Model, photos: Photos, folder: str) -> None:
    from accelerate import Accelerator  # type: ignore[import-not-found]

    accelerator = Accelerator(cpu=True)
    loader = DataLoader(photos, 6, shuffle=True, num_workers=2)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
    for _ in range(2):
        for pixels, labels in loader:
            accelerator.backward(model(pixels, labels)["loss"])
            optimizer.step()
            optimizer.zero_grad()


def by_lightning(model: Model, photos: Photos, folder: str) -> None:
    import lightning  # type: ignore[import-not-found]

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss: torch.Tensor = self.model(*batch)["loss"]
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", enable_model_summary=False, **quiet)
    trainer.fit(Module(), DataLoader(photos, 6, shuffle=True, num_workers=2))


def by_transformers(model: Model, photos: Photos, folder: str) -> None:
    from transformers import Trainer, TrainingArguments  # type: ignore[import-not-found]

    workers = {"per_device_train_batch_size": 6, "dataloader_num_workers": 2, "num_train_epochs": 2}
    own = TrainingArguments(folder, use_cpu=True, save_strategy="no", report_to=[], disable_tqdm=True, **workers)
    Trainer(model, own, train_dataset=ByName(photos)).train()


TRAINERS: dict[str, Callable[[Model, Photos, str], None]] = {
    "accelerate": by_accelerate,
    "lightning": by_lightning,
    "transformers": by_transformers,
}


def main(photos: str, name: str, folder: str) -> None:
    torch.manual_seed(1)
    model = Model()
    TRAINERS[name](model, Photos(photos), folder)
    print(json.dumps({"losses": model.losses, "state": torch.rand(()).item()}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
