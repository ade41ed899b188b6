"""Arguments of transforms: what they accept, their normal form, and one line for what they refuse."""

import dataclasses
import inspect
import math
import pickle
from enum import Enum
from typing import Any

import numpy as np
import pytest
from PIL import Image

from iofast import transforms as T
from iofast.errors import OptionError
from iofast.kernel.contract import ALIASED
from iofast.transforms.normalize import scale_and_bias

FILTERS = ["nearest", "box", "bilinear", "bicubic", "lanczos"]


class Mode(Enum):
    """Like torchvision's InterpolationMode."""

    BICUBIC = "bicubic"
    NEAREST_EXACT = "nearest-exact"
    HAMMING = "hamming"


REQUIRED: dict[str, Any] = {
    "size": 8,
    "target_size": 8,
    "min_size": 8,
    "sizes": [(8, 8)],
    "place": "center",
    "padding": 2,
    "degrees": 3,
    "threshold": 0.5,
    "bits": 4,
    "kernel_size": 3,
    "sharpness_factor": 1,
    "transforms": [T.Grayscale()],
    "mean": (0.5,),
    "std": (0.5,),
    "num_classes": 3,
}
WRONG: dict[str, list[Any]] = {
    "p": [2, -0.1, math.nan, "x"],
    "fill": [128, (1, 2), "red"],
    "size": [0, 32_768, (3, 4, 5), "256", 2.5, None, -1, ()],
    "target_size": [0, (3, 4, 5)],
    "sizes": [[], 32, "32", [(32, 32), (64, 64)]],
    "interpolation": ["hamming", Mode.HAMMING, 5, True, []],
    "style": ["jax"],
    "padding_mode": ["wrap", []],
    "padding": [(1, 2, 3), -1, "x"],
    "fraction": [0, 1.5, "x"],
    "place": ["top", []],
    "scale": [(0.5, 0.2), (0.5,), 0.5, (0.0, 0.0), (0.1, math.nan)],
    "ratio": [(0.0, 1.0), (1.0, math.inf), (2, 1)],
    "scale_range": [(0, 1), (2, 1)],
    "side_range": [(0.5, 2)],
    "longest": [2],
    "random_scale_prob": [2],
    "random_aspect_range": [(0, 1)],
    "trials": [0, 1001],
    "sampler_options": [[], 0.5, (math.nan,), (-3,), (math.inf,), "x"],
    "max_size": ["9", 9.5, True, 32_768],
    "brightness": [-0.1, (0, 64), math.nan, "much"],
    "contrast": [(0.5, 0.2)],
    "hue": [0.6],
    "num_output_channels": [1],
    "threshold": [128, -0.1, "x"],
    "bits": [9, -1, 2.5],
    "sharpness_factor": [-1, 64],
    "kernel_size": [4, 129, "x"],
    "sigma": [0.0, (2, 1)],
    "degrees": [-1, (3, 1), (1, 2, 3)],
    "expand": [True],
    "center": [(1,), "x"],
    "translate": [(2, 0), (1,)],
    "shear": [(1, 2, 3)],
    "distortion_scale": [2, -1],
    "num_ops": [-1, 2.5],
    "num_magnitude_bins": [1, 2.5],
    "magnitude": [31, -1],
    "policy": ["mnist", []],
    "severity": [11, 0],
    "mixture_width": [0],
    "chain_depth": [1.5],
    "transforms": [[], T.Grayscale(), [T.Normalize.imagenet()], [T.CenterCrop(3)]],
    "value": ["pink", (1, 2)],
    "count": [0, (3, 1), 65, True, (True, 2), 2.5],
    "mean": [(), (0.5,) * 17, 0.5],
    "std": [(0.5, math.inf, 1), (0.0,)],
    "max_value": [0, "255"],
    "alpha": [0, -1, math.inf, "x"],
    "num_classes": [0, None],
    "label_smoothing": [1, -0.1],
    "until": [-1],
}


def transform_classes() -> list[tuple[type, str]]:
    """Every class of transforms, with each of its fields that `WRONG` has values for."""
    classes = [each for each in vars(T).values() if dataclasses.is_dataclass(each) and isinstance(each, type)]
    found = [(each, name) for each in classes for name in inspect.signature(each).parameters if name in WRONG]
    return [each for each in found if each != (T.RandomChoice, "p")]  # it depends on the transforms


def make(kind: type, **given: Any) -> Any:
    needed = {name: REQUIRED[name] for name in inspect.signature(kind).parameters if name in REQUIRED}
    return kind(**needed | ({"max_size": 9} if kind is T.RandomResize else {}) | given)


@pytest.mark.parametrize(("kind", "field"), transform_classes(), ids=lambda each: getattr(each, "__name__", each))
def test_fields_refuse_wrong_values(kind: type, field: str) -> None:
    make(kind)
    for value in WRONG[field]:
        with pytest.raises(OptionError, match=rf"^{kind.__name__}: {field} must .*, found ") as raised:
            make(kind, **{field: value})
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.Solarize(128), "128 / 255"),
        (lambda: T.RandomErasing(scale=(0.5, 2)), "scale must be 0 to 1"),
        (lambda: T.CenterCrop(8, siz=1), r"^siz is not an option of CenterCrop: did you mean size\?$"),  # type: ignore[call-arg]
        (lambda: T.RandomChoice([T.Grayscale()], p=[0.5, 0.5]), "p must have 1 entry per transform"),
        (lambda: T.RandomChoice([T.Grayscale()] * 2, p=[-1, 2]), r"\(2\), each 0 or more"),
        (lambda: T.RandomChoice([T.Grayscale()], p=[0]), "not all 0"),
        (lambda: T.RandomChoice([T.Grayscale()], p=["a"]), "each 0 or more and not all 0, found"),
        (lambda: T.RandomChoice([T.Grayscale()], p=0.5), "1 entry per transform"),
        (lambda: T.RandomChoice([T.MixUp(num_classes=3), T.Grayscale()]), "operations on images"),
        (lambda: T.compile([T.RandomChoice([T.MixUp(num_classes=3), T.CutMix(num_classes=4)])]), "must be equal"),
        (lambda: T.RandomRotation(3, interpolation="bicubic"), "nearest or bilinear"),
        (lambda: T.RandomAffine(3, scale=(0, 1)), "scale must be above 0"),
        (lambda: T.RandomCrop(32, pad_if_needed="right"), "pad_if_needed must be True, False or 'end'"),
        (lambda: T.RandomCrop(32, padding=32, padding_mode="reflect"), "less than the size"),
        (lambda: T.Resize((3, 4), max_size=9), "max_size"),
        (lambda: T.Resize(9, max_size=9), "max_size"),
        (lambda: T.Resize(9, "bicubic", antialias=False), "antialias"),
        (lambda: T.RandomResize(9, 9), "below max_size"),
        (lambda: T.RandomShortestSize([], 9), "min_size"),
        (lambda: T.RandomShortestSize(9, 8), "max_size"),
        (lambda: T.ResizeToBucket([(0, 3)]), "ResizeToBucket: each of sizes"),
        (T.Views, "one view or more"),
        (lambda: T.Views(local=(0, [])), "how many, list"),
        (lambda: T.Views(local=3), "how many, list"),
        (lambda: T.Views(local=(1.5, [])), "how many, list"),
        (lambda: T.Views(local=(300, T.train(8))), "at most 256"),
        (lambda: T.compile(T.Views(first=[])), "one size"),
        (lambda: T.compile(T.Views(first=[T.CenterCrop(8), T.MixUp(num_classes=2)])), "mixes"),
        (lambda: T.compile(T.Views(first=T.Views(first=T.train()))), "must be a list"),
        (lambda: T.timm_train(8, train_crop_mode="none"), "rrc, rkrc or rkrr"),
        (lambda: T.timm_train(8, re_prob=1, re_mode="x"), "const, rand or pixel"),
        (lambda: T.timm_train(8, re_prob=1, re_mode=[]), "const, rand or pixel"),  # type: ignore[arg-type]
    ],
)
def test_other_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_sizes_and_interpolation_as_torchvision_takes_them() -> None:
    assert T.Resize([256]) == T.Resize(256) == T.Resize(np.int64(256))  # type: ignore[arg-type]
    assert T.CenterCrop([8]) == T.CenterCrop((8, 8)) == T.CenterCrop(8)
    assert T.RandomResizedCrop([8, 9]).size == (8, 9)
    assert T.ResizeToBucket([[32, 32], (16, 64)]).sizes == ((32, 32), (16, 64))  # type: ignore[list-item]
    assert T.Resize(8, Mode.BICUBIC).interpolation == "bicubic"  # type: ignore[arg-type]
    assert T.Resize(8, Mode.NEAREST_EXACT).interpolation == "nearest"  # type: ignore[arg-type]
    for name in FILTERS:
        mode = Image.Resampling[name.upper()]
        for made in (T.Resize(8, mode), T.Resize(8, int(mode)), T.ResizeToBucket([(8, 9)], mode)):  # type: ignore[arg-type]
            assert made.interpolation == name
    assert T.compile([T.RandomResizedCrop(8, interpolation="box")]).filter == "box"
    assert T.compile([]).filter == "bilinear"
    assert T.compile([T.Resize((8, 9), antialias=False)]).filter == ALIASED


@pytest.mark.parametrize("unit", [5e-324, 1.7e308])
def test_weights_of_a_choice_have_any_scale(unit: float) -> None:
    assert T.RandomChoice([T.Grayscale(), T.Solarize(0.5)], p=[unit, unit]).p == (0.5, 0.5)


def test_normalize_broadcasts_and_folds() -> None:
    assert T.Normalize([0.5], [0.25]) == T.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    scale, bias = scale_and_bias([T.Normalize([0.5], [0.25]), T.Normalize([1.0], [2.0], max_value=1)])
    levels = np.arange(256)[:, None]
    np.testing.assert_allclose(levels * scale + bias, np.repeat(((levels / 255 - 0.5) / 0.25 - 1) / 2, 3, 1))


@pytest.mark.parametrize(("mean", "std"), [([123.675, 116.28, 103.53], [58.395, 57.12, 57.375]), ([0], [255])])
def test_normalize_of_pixels_up_to_255(mean: list[float], std: list[float]) -> None:
    with pytest.raises(OptionError, match=r"^Normalize: mean and std must be of pixels in \[0, 1\].*max_value=255"):
        T.Normalize(mean, std)
    given = T.Normalize(mean, std, max_value=255)
    wanted = T.Normalize([value / 255 for value in mean], [value / 255 for value in std])
    assert given == wanted == dataclasses.replace(given) == eval(repr(given), vars(T))


def test_reprs_and_pickles_can_be_read_back() -> None:
    kinds = {kind: make(kind) for kind, _ in transform_classes()}
    more = [*T.train(), T.RandomAffine(3, shear=5), T.timm_policy("rand-m9"), T.Resize((3, 4), "box"), T.dino()]
    more += [T.Normalize((5,), (9,), np.float64(255)), T.RandomInvert(np.float64(0.5)), T.Solarize(np.float64(0.5))]
    for transform in (*kinds.values(), *more):
        assert eval(repr(transform), vars(T)) == transform == pickle.loads(pickle.dumps(transform))
    for transforms in (T.train(), T.evaluate(), T.dino()):
        assert pickle.loads(pickle.dumps(T.compile(transforms))) == T.compile(transforms)
