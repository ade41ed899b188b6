"""Colours, erasing and mixing against torchvision v2 itself, where it is installed (`make interop`)."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pixel_work import apply, noise, stepped

from benchmarks.peers import vision
from iofast.loader.assemble import soft_labels
from iofast.transforms import CutMix, MixUp, RandomErasing
from iofast.work import CHANNELS, NUMBERS, Step, no_work

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def functional() -> Any:
    if vision.v2() is None:
        pytest.skip("torchvision is not installed")
    return importlib.import_module("torchvision.transforms.v2.functional")


Theirs = Callable[[Any, torch.Tensor, list[float]], torch.Tensor]
CASES: list[tuple[Step, list[list[float]], Theirs]] = [
    (Step.BRIGHTNESS, [[0.0], [0.6], [1.0], [1.9], [7.0]], lambda f, x, n: f.adjust_brightness(x, n[0])),
    (Step.CONTRAST, [[0.0], [0.6], [1.0], [1.9], [7.0]], lambda f, x, n: f.adjust_contrast(x, n[0])),
    (Step.SATURATION, [[0.0], [0.6], [1.0], [1.9]], lambda f, x, n: f.adjust_saturation(x, n[0])),
    (Step.SATURATION, [[0.0]], lambda f, x, n: f.rgb_to_grayscale(x, num_output_channels=3)),
    (Step.HUE, [[-0.5], [-0.2], [0.0], [0.1], [0.5]], lambda f, x, n: f.adjust_hue(x, n[0])),
    (Step.SOLARIZE, [[0.0], [100.5], [255.0]], lambda f, x, n: f.solarize(x, n[0])),
    (Step.POSTERIZE, [[1.0], [4.0], [8.0]], lambda f, x, n: f.posterize(x, int(n[0]))),
    (Step.PERMUTE, [[float(n)] for n in range(6)], lambda f, x, n: f.permute_channels(x, list(CHANNELS[int(n[0])]))),
    (Step.AUTOCONTRAST, [[]], lambda f, x, n: f.autocontrast(x)),
    (Step.EQUALIZE, [[]], lambda f, x, n: f.equalize(x)),
    (Step.SHARPNESS, [[0.0], [0.5], [1.0], [1.9]], lambda f, x, n: f.adjust_sharpness(x, n[0])),
    (
        Step.BLUR,
        [[0.1, 3, 0.1, 3], [1.0, 4, 2.0, 11], [5.0, 7, 5.0, 7]],
        lambda f, x, n: f.gaussian_blur(x, [int(2 * n[1] + 1), int(2 * n[3] + 1)], [n[0], n[2]]),
    ),
]


def taken(images: torch.Tensor, code: Step, numbers: np.ndarray) -> torch.Tensor:
    return stepped(images, np.full((len(images), 1), code, np.int8), numbers[:, None])


@pytest.mark.parametrize(("code", "numbers", "theirs"), CASES)
def test_steps(functional: Any, code: Step, numbers: list[list[float]], theirs: Theirs) -> None:
    images = noise(3, 40, 41).contiguous()
    for some in numbers:
        own = np.zeros((3, NUMBERS), np.float32)
        own[:, : len(some)] = some
        wanted = torch.stack([theirs(functional, image, some) for image in images])
        assert (taken(images, code, own).int() - wanted.int()).abs().max() <= 1


@pytest.mark.parametrize("bilinear", [False, True])
def test_warps(functional: Any, bilinear: bool) -> None:
    """A rotation about the middle, without the edges, where torchvision weighs outside pixels twice."""
    images, angle = noise(2, 41, 52).contiguous(), math.radians(23)
    cos, sin, x, y = math.cos(angle), math.sin(angle), 26.0, 20.5
    own = np.zeros((2, NUMBERS), np.float32)
    own[:, :6] = cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y
    mode = functional.InterpolationMode.BILINEAR if bilinear else functional.InterpolationMode.NEAREST
    wanted = functional.rotate(images, 23, interpolation=mode)
    inside = functional.rotate(torch.full_like(images, 255), 23, interpolation=mode) == 255
    made = taken(images, Step.WARP_BILINEAR if bilinear else Step.WARP_NEAREST, own)
    assert inside.float().mean() > 0.5
    assert (made.int() - wanted.int())[inside].abs().max() <= int(bilinear)


def test_erasing(functional: Any) -> None:
    images, ops = noise(2, 20, 21), [RandomErasing(1, value=(0.1, 0.2, 0.3))]
    work = no_work(2)
    erased = np.array([[[3, 4, 10, 18]], [[0, 0, 5, 2]]], np.int32)
    fills = np.broadcast_to(np.float32([0.1, 0.2, 0.3]), (2, 1, 3)).copy()
    work = replace(work, erased=erased, fills=fills, noise=np.zeros((2, 1), np.int32))
    made = apply(images, ops, work=work)
    value = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)
    for row, (y0, x0, y1, x1) in enumerate(erased[:, 0].tolist()):
        wanted = functional.erase(images[row].float().mul(1 / 255), y0, x0, y1 - y0, x1 - x0, value)
        torch.testing.assert_close(made[row], wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("ours", "name"), [(MixUp, "MixUp"), (CutMix, "CutMix")])
def test_mixing(functional: Any, ours: Any, name: str) -> None:
    """With two images torchvision's partner, the previous image, equals ours."""
    v2 = importlib.import_module("torchvision.transforms.v2")
    theirs, images = getattr(v2, name)(num_classes=4), noise(2, 20, 24)
    single = images.float().mul(1 / 255)
    labels = torch.tensor([1, 3])
    params = theirs.make_params([single]) | {"labels": labels, "batch_size": 2}
    work = no_work(2).paired(np.array([1, 0]))
    columns = {}
    if name == "MixUp":
        columns["share"] = columns["own"] = np.full(2, params["lam"], np.float32)
    else:
        x0, y0, x1, y1 = params["box"]
        columns["patch"] = np.array([[y0, x0, y1, x1]] * 2, np.int32)
        columns["own"] = np.full(2, params["lam_adjusted"], np.float32)
    work, mix = replace(work, **columns), ours(num_classes=4)
    made = apply(images, [mix], work=work)
    torch.testing.assert_close(made, theirs.transform(single, params), rtol=0, atol=1e-6)
    torch.testing.assert_close(soft_labels(labels, mix, work), theirs.transform(labels, params))
