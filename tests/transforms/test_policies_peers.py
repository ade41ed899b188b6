"""Moves and policies compared with torchvision v2 and timm, if they are installed (`make interop`)."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pixel_work import noise, stepped

from benchmarks.peers import vision
from iofast import transforms as T
from iofast.choices import Draw
from iofast.transforms.layers import Named, Strength, step_of
from iofast.transforms.policies import Policy
from iofast.transforms.policy_tables import AUTO_POLICIES, TIMM_SPACES, WIDE, narrow
from iofast.work import Step

pytestmark = pytest.mark.interop

HEIGHT, WIDTH = 41, 52
SIZES = np.array([float(WIDTH)]), np.array([float(HEIGHT)])


@pytest.fixture(scope="module")
def v2() -> Any:
    return vision.v2() or pytest.skip("torchvision is not installed")


def ours(op: Policy, name: str, value: float, images: torch.Tensor) -> torch.Tensor:
    step, numbers = step_of(
        op, name, np.full(len(images), value), tuple(np.repeat(size, len(images)) for size in SIZES)
    )
    return stepped(images, np.full((len(images), 1), step, np.int8), numbers[:, None])


CASES = [
    (name, float(value))
    for name, values in {
        "ShearX": (-0.3, 0.23),
        "ShearY": (-0.99, 0.1),
        "TranslateX": (-9, 4),
        "TranslateY": (-3, 20),
        "Rotate": (-30, 135, 5),
        "Brightness": (0.1, 1.9),
        "Color": (0.1, 1.9),
        "Contrast": (0.1, 1.9),
        "Sharpness": (0.1, 1.9),
        "Posterize": (2, 7),
        "Solarize": (0, 100.3, 255),
        "AutoContrast": (0,),
        "Equalize": (0,),
        "Invert": (0,),
        "Identity": (0,),
    }.items()
    for value in values
]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_operations_are_torchvisions(v2: Any, name: str, value: float) -> None:
    images, theirs = noise(2, HEIGHT, WIDTH).contiguous(), v2.AutoAugment()
    magnitude = value - (name in ("Brightness", "Color", "Contrast", "Sharpness"))
    magnitude = magnitude / 255 if name == "Solarize" else magnitude
    wanted = torch.stack(
        [
            theirs._apply_image_or_video_transform(image, name, magnitude, theirs.interpolation, theirs._fill)
            for image in images
        ]
    )
    made = ours(T.AutoAugment(), name, value, images)
    # a pixel whose source lies between two pixels may get either
    differ = (made.int() - wanted.int()).abs() > 1
    assert differ.float().mean() <= (0.002 if name in ("ShearX", "ShearY", "Rotate") else 0)


@pytest.mark.parametrize("space", ["RandAugment", "TrivialAugmentWide", "AutoAugment"])
def test_strengths_are_torchvisions(v2: Any, space: str) -> None:
    theirs = getattr(v2, space)()
    bins = 10 if space == "AutoAugment" else 31
    op = getattr(T, space)()
    mine = {entry.name: entry.range for entry in op.layers[0].entries}
    if space == "AutoAugment":
        mine = narrow("Invert")
    listed = theirs._AUGMENTATION_SPACE
    assert set(mine) == set(listed)
    for name, (magnitudes, signed) in listed.items():
        values = magnitudes(bins, HEIGHT, WIDTH)
        if values is None:
            assert mine[name] is None
            continue
        assert mine[name].signed == signed
        for place in range(bins):
            entry = Named(name, mine[name], Strength.fixed(place / (bins - 1)))
            found = float(entry.number(np.full((1, 5), 0.9), SIZES)[0])
            wanted = float(values[place])
            if name.startswith("Translate"):  # 15.999999 in float32, which they cut off
                assert found == int(wanted + 1e-4)
                continue
            wanted += name in ("Brightness", "Color", "Contrast", "Sharpness")
            assert found == pytest.approx(wanted * 255 if name == "Solarize" else wanted, rel=1e-5, abs=1e-5), name


@pytest.mark.parametrize("name", AUTO_POLICIES)
def test_pairs_are_torchvisions(v2: Any, name: str) -> None:
    theirs = v2.AutoAugment(v2.AutoAugmentPolicy(name))._policies
    wanted = [tuple((each, p, level or 0) for each, p, level in pair) for pair in theirs]
    assert [tuple(pair) for pair in AUTO_POLICIES[name]] == wanted


@pytest.mark.parametrize("kind", ["RandomAffine", "RandomRotation", "RandomPerspective"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_moves_are_torchvisions(v2: Any, kind: str, mode: str) -> None:
    """The same random numbers, passed to torchvision's functions."""
    functional = importlib.import_module("torchvision.transforms.v2.functional")
    images, draw = noise(8, HEIGHT, WIDTH).contiguous(), Draw(3, 0, np.arange(8))
    way = functional.InterpolationMode(mode)
    ops: dict[str, Any] = {
        "RandomAffine": T.RandomAffine(40, (0.2, 0.3), (0.6, 1.4), (-10, 20, -5, 5), mode, center=(20, 11)),
        "RandomRotation": T.RandomRotation(90, mode, center=(20, 11)),
        "RandomPerspective": T.RandomPerspective(0.6, 1.0, mode),
    }
    work = T.compile([ops[kind]]).work(draw, np.full(8, WIDTH), np.full(8, HEIGHT))
    made = stepped(images, work.steps, work.numbers)
    inside = stepped(torch.full_like(images, 255), work.steps, work.numbers) == 255
    u = draw.uniform({"RandomAffine": "affine", "RandomRotation": "rotation"}.get(kind, "perspective"), 9)
    for row, image in enumerate(images):
        own = u[row]
        if kind == "RandomRotation":
            wanted = functional.rotate(image, -90 + 180 * own[0], way, center=[20, 11])
        elif kind == "RandomAffine":
            shift = [round((2 * own[1] - 1) * 0.2 * WIDTH), round((2 * own[2] - 1) * 0.3 * HEIGHT)]
            shear = [-10 + 30 * own[4], -5 + 10 * own[5]]
            wanted = functional.affine(image, -40 + 80 * own[0], shift, 0.6 + 0.8 * own[3], shear, way, center=[20, 11])
        else:
            wide, high = int(0.6 * (WIDTH // 2)) + 1, int(0.6 * (HEIGHT // 2)) + 1
            x, y = np.floor(own[1::2] * wide), np.floor(own[2::2] * high)
            ends = [[x[0], y[0]], [WIDTH - wide + x[1], y[1]], [WIDTH - wide + x[2], HEIGHT - high + y[2]]]
            ends.append([x[3], HEIGHT - high + y[3]])
            starts = [[0, 0], [WIDTH - 1, 0], [WIDTH - 1, HEIGHT - 1], [0, HEIGHT - 1]]
            wanted = functional.perspective(image, starts, [[int(v) for v in each] for each in ends], way)
        differ = ((made[row].int() - wanted.int()).abs() > 1) & inside[row]
        assert differ.float().mean() < 0.01, row


def test_levels_are_timms() -> None:
    augment = pytest.importorskip("timm.data.auto_augment")
    for increasing, space in enumerate(TIMM_SPACES):
        for name, mine in space.items():
            theirs = name + "Increasing" * (
                increasing and name in ("Color", "Contrast", "Brightness", "Sharpness", "Posterize", "Solarize")
            )
            theirs += "Rel" * name.startswith("Translate")
            level = augment.LEVEL_TO_ARG[theirs]
            for magnitude in (0.0, 2.5, 5.0, 7.3, 9.9, 10.0):
                if level is None:
                    assert mine is None
                    continue
                wanted = {round(float(level(magnitude, {})[0]), 6) for _ in range(40)}
                entry = Named(name, mine, Strength.fixed(magnitude / 10))
                sides = [float(entry.number(np.full((1, 5), side), SIZES)[0]) for side in (0.2, 0.8)]
                found = {round(side, 6) for side in sides}
                if name.startswith("Translate"):
                    found = {round(side / SIZES[name == "TranslateY"][0], 6) for side in sides}
                if name == "Desaturate":
                    wanted = {round(1 - value, 6) for value in wanted}
                assert found == wanted or found == {0.0, -0.0}, (name, magnitude)


@pytest.mark.parametrize(("name", "value"), [case for case in CASES if case[0] not in ("Identity",)])
def test_operations_are_pillows(name: str, value: float) -> None:
    """The functions that timm calls, on an image in memory."""
    augment = pytest.importorskip("timm.data.auto_augment")
    image = noise(1, HEIGHT, WIDTH).contiguous()
    pillow = Image.fromarray(image[0].permute(1, 2, 0).numpy())
    more = {"resample": Image.Resampling.NEAREST, "fillcolor": (0, 0, 0)}
    theirs = {"TranslateX": augment.translate_x_abs, "TranslateY": augment.translate_y_abs}.get(
        name
    ) or augment.NAME_TO_OP[name]
    value = round(value) if name in ("Posterize", "Solarize") else value
    argument = -value if name.startswith("Translate") else value
    arguments = () if name in ("AutoContrast", "Equalize", "Invert") else (argument,)
    wanted = torch.from_numpy(np.array(theirs(pillow, *arguments, **more))).permute(2, 0, 1)
    made = ours(T.AutoAugment(), name, value, image)[0]
    differ = (made.int() - wanted.int()).abs() > 2
    assert differ.float().mean() <= (0.01 if name in ("ShearX", "ShearY", "Rotate") else 0.0), math.nan


def test_steps_know_all_names() -> None:
    for name in {*WIDE, *narrow("Invert"), *TIMM_SPACES[0], *TIMM_SPACES[1]}:
        step, _ = step_of(T.AutoAugment(), name, np.zeros(1), SIZES)
        assert step in Step
