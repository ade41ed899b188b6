"""Recipes of torchvision v2 in torch's DataLoader, for `bench_load --part recipes`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader

from tools.pillow_folder import Files, PillowFiles

FLOAT = "float"  # the recipe of normalisation alone


def v2() -> Any:
    """torchvision.transforms.v2, None if it is not installed. A torchvision for another build of torch lacks its own
    operators, which no transform here needs; their registrations fail the import and are left out."""
    if importlib.util.find_spec("torchvision") is None:
        return None
    try:
        return importlib.import_module("torchvision.transforms.v2")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")
        return importlib.import_module("torchvision.transforms.v2")


def recipe(name: str) -> Any:
    """The recipe of this name in torchvision, on uint8 tensors as far as possible."""
    t = v2()
    if name == "dino":
        return Crops()
    middle = {
        "jitter": [t.ColorJitter(0.4, 0.4, 0.4, 0.1)],
        "rand": [t.RandAugment(interpolation=t.InterpolationMode.BILINEAR)],
        "wide": [t.TrivialAugmentWide(interpolation=t.InterpolationMode.BILINEAR)],
        "three": [t.RandomChoice([t.Grayscale(3), t.RandomSolarize(128, p=1), t.GaussianBlur(17, (0.1, 2.0))])],
    }.get(name, [])
    end = [t.RandomErasing(0.25)] if name == "rand" else []
    crop = [t.PILToTensor(), t.RandomResizedCrop(224, antialias=True), t.RandomHorizontalFlip()]
    normalize = [t.ToDtype(torch.float32, scale=True), t.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    return t.Compose([*crop, *middle, *normalize, *end])


class Crops:
    """DINO's two global and eight local crops of one image."""

    def __init__(self) -> None:
        t = v2()
        self.tensor, blur, cubic = t.PILToTensor(), t.GaussianBlur(17, (0.1, 2.0)), t.InterpolationMode.BICUBIC
        end = [t.ToDtype(torch.float32, scale=True), t.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
        jitter = [
            t.RandomHorizontalFlip(),
            t.RandomApply([t.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
            t.RandomGrayscale(0.2),
        ]

        def view(size: int, scale: tuple[float, float], *after: Any) -> Any:
            crop = t.RandomResizedCrop(size, scale, interpolation=cubic, antialias=True)
            return t.Compose([crop, *jitter, *after, *end])

        self.first = view(224, (0.4, 1.0), blur)
        self.second = view(224, (0.4, 1.0), t.RandomApply([blur], 0.1), t.RandomSolarize(128, 0.2))
        self.local = view(96, (0.05, 0.4), t.RandomApply([blur], 0.5))

    def __call__(self, image: Image.Image) -> list[torch.Tensor]:
        tensor = self.tensor(image)
        return [self.first(tensor), self.second(tensor), *(self.local(tensor) for _ in range(8))]


def loader(files: Files, name: str, batch: int, workers: int) -> DataLoader[Any]:
    """Plain files, shuffled; workers stay alive between epochs and compute with one thread, torch's default."""
    options: dict[str, Any] = {"shuffle": True, "num_workers": workers, "persistent_workers": True}
    return DataLoader(PillowFiles(files, recipe(name)), batch, **options)
