"""ColorJitter by other libraries in the loader's functions, for bench_recipes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.peers import vision

JITTER = (0.4, 0.4, 0.4, 0.1)


def installed(name: str) -> Any:
    """A module, None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def functions() -> dict[str, dict[str, Callable[..., Any]]]:
    """By name the loader's option and its function, of the libraries that are installed."""
    made: dict[str, dict[str, Callable[..., Any]]] = {}
    if (albumentations := installed("albumentations")) is not None:
        made["albumentations in map_sample"] = {"map_sample": _albumentations(albumentations)}
    if (v2 := vision.v2()) is not None:
        jitter = v2.ColorJitter(*JITTER)
        made["torchvision v2 in map_sample"] = {
            "map_sample": lambda sample, _: sample | {"image": jitter(sample["image"])}
        }
    if (kornia := installed("kornia")) is not None:
        batchwise = kornia.augmentation.ColorJitter(*JITTER, p=1.0)
        made["kornia in map_batch"] = {"map_batch": lambda batch: (batchwise(batch[0]), batch[1])}
    return made


def _albumentations(library: Any) -> Callable[..., Any]:
    jitter = library.ColorJitter((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1), p=1)

    def function(sample: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
        image = np.ascontiguousarray(sample["image"].permute(1, 2, 0).numpy())
        return sample | {"image": torch.from_numpy(jitter(image=image)["image"]).permute(2, 0, 1)}

    return function
