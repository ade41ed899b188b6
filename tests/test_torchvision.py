"""Colours, erasing and mixing against torchvision v2 itself, where it is installed (`make interop`)."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from pixel_work import noise

from iofast.loader.mixing import soft_labels
from iofast.pixels import apply
from iofast.pixels.colour import STEPS
from iofast.transforms import CutMix, MixUp, RandomErasing
from iofast.work import Step, still

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def functional() -> Any:
    """torchvision.transforms.v2.functional. Of a torchvision for another build of torch, its own operators are missing,
    and their registrations fail the import: they are left out."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    try:
        return importlib.import_module("torchvision.transforms.v2.functional")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")
        return importlib.import_module("torchvision.transforms.v2.functional")


CASES: list[tuple[Step, list[float], Callable[[Any, torch.Tensor, float], torch.Tensor]]] = [
    (Step.BRIGHTNESS, [0.0, 0.6, 1.0, 1.9], lambda their, x, f: their.adjust_brightness(x, f)),
    (Step.CONTRAST, [0.0, 0.6, 1.0, 1.9], lambda their, x, f: their.adjust_contrast(x, f)),
    (Step.SATURATION, [0.0, 0.6, 1.0, 1.9], lambda their, x, f: their.adjust_saturation(x, f)),
    (Step.HUE, [-0.5, -0.2, 0.0, 0.1, 0.5], lambda their, x, f: their.adjust_hue(x, f)),
    (Step.SOLARIZE, [0.0, 0.4, 1.0], lambda their, x, f: their.solarize(x, f)),
    (Step.SATURATION, [0.0], lambda their, x, f: their.rgb_to_grayscale(x, num_output_channels=3)),
]


@pytest.mark.parametrize(("code", "factors", "theirs"), CASES)
def test_colours(functional: Any, code: Step, factors: list[float], theirs: Any) -> None:
    for factor in factors:
        images = noise(3, 40, 41).float().div(255).contiguous()
        wanted = torch.stack([theirs(functional, image, factor) for image in images])
        STEPS[code](images.unbind(1), torch.full((3, 1, 1), factor))
        torch.testing.assert_close(images, wanted, rtol=0, atol=2e-6)


def test_erasing(functional: Any) -> None:
    images, ops = noise(2, 20, 21), [RandomErasing(1, value=(0.1, 0.2, 0.3))]
    work = still(2)
    erased = np.array([[[3, 4, 10, 18]], [[0, 0, 5, 2]]], np.int32)
    work = replace(work, erased=erased, noise=np.zeros((2, 1), np.int32))
    made = apply(images, ops, work=work)
    value = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)
    for row, (y0, x0, y1, x1) in enumerate(erased[:, 0].tolist()):
        wanted = functional.erase(images[row].float().mul(1 / 255), y0, x0, y1 - y0, x1 - x0, value)
        torch.testing.assert_close(made[row], wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("ours", "name"), [(MixUp, "MixUp"), (CutMix, "CutMix")])
def test_mixing(functional: Any, ours: Any, name: str) -> None:
    """Of two images torchvision's partner, the one before, is ours."""
    v2 = importlib.import_module("torchvision.transforms.v2")
    theirs, images = getattr(v2, name)(num_classes=4), noise(2, 20, 24)
    single = images.float().mul(1 / 255)
    labels = torch.tensor([1, 3])
    params = theirs.make_params([single]) | {"labels": labels, "batch_size": 2}
    work = still(2).paired(np.array([1, 0]))
    columns = {each: getattr(work, each) for each in work.__slots__}
    if name == "MixUp":
        columns["share"] = columns["own"] = np.full(2, params["lam"], np.float32)
    else:
        x0, y0, x1, y1 = params["box"]
        columns["patch"] = np.array([[y0, x0, y1, x1]] * 2, np.int32)
        columns["own"] = np.full(2, params["lam_adjusted"], np.float32)
    work, mix = type(work)(**columns), ours(num_classes=4)
    made = apply(images, [mix], work=work)
    torch.testing.assert_close(made, theirs.transform(single, params), rtol=0, atol=1e-6)
    torch.testing.assert_close(soft_labels(labels, mix, work), theirs.transform(labels, params))
