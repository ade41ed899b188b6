"""Operations and policies beside torchvision v2 and timm, if installed (`make interop`)."""

from typing import Any

import numpy as np
import pytest
import torch
from pixel_work import noise, stepped

from benchmarks.peers import vision
from iofast import transforms as T
from iofast.transforms.layers import Named, Strength, step_of
from iofast.transforms.policies import Policy
from iofast.transforms.policy_tables import AUTO_POLICIES, TIMM_SPACES, narrow

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


FACTORS = ("Brightness", "Color", "Contrast", "Sharpness")
VALUES: dict[str, tuple[float, ...]] = {
    "ShearX": (-0.3, 0.23),
    "ShearY": (-0.99, 0.1),
    "TranslateX": (-9, 4),
    "TranslateY": (-3, 20),
    "Rotate": (-30, 135, 5),
    "Posterize": (2, 7),
    "Solarize": (0, 100.3, 255),
    **dict.fromkeys(FACTORS, (0.1, 1.9)),
    **dict.fromkeys(("AutoContrast", "Equalize", "Invert", "Identity"), (0,)),
}
CASES = [(name, float(value)) for name, values in VALUES.items() for value in values]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_operations_are_torchvisions(v2: Any, name: str, value: float) -> None:
    images, theirs = noise(2, HEIGHT, WIDTH).contiguous(), v2.AutoAugment()
    magnitude = value / 255 if name == "Solarize" else value - (name in FACTORS)
    more = theirs.interpolation, theirs._fill
    wanted = torch.stack([theirs._apply_image_or_video_transform(image, name, magnitude, *more) for image in images])
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
            wanted += name in FACTORS
            assert found == pytest.approx(wanted * 255 if name == "Solarize" else wanted, rel=1e-5, abs=1e-5), name


@pytest.mark.parametrize("name", AUTO_POLICIES)
def test_pairs_are_torchvisions(v2: Any, name: str) -> None:
    theirs = v2.AutoAugment(v2.AutoAugmentPolicy(name))._policies
    wanted = [tuple((each, p, level or 0) for each, p, level in pair) for pair in theirs]
    assert [tuple(pair) for pair in AUTO_POLICIES[name]] == wanted


def test_levels_are_timms() -> None:
    augment = pytest.importorskip("timm.data.auto_augment")
    for increasing, space in enumerate(TIMM_SPACES):
        for name, mine in space.items():
            theirs = name + "Increasing" * (increasing and name in (*FACTORS, "Posterize", "Solarize"))
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
