"""What holds of all operations: their random numbers are those of the sample, and never change."""

from __future__ import annotations

import numpy as np
from transform_draws import WORK_COLUMNS, work, work_hash

from iofast import transforms as T
from iofast.choices import Draw
from iofast.transforms import colours
from iofast.transforms.mixing import Mixes
from iofast.transforms.transform import ImageOp, Op

EVERYTHING: list[Op] = [
    T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    T.RandomGrayscale(0.3),
    T.RandomSolarize(0.5),
    T.RandomErasing(0.5),
    T.CutMix(num_classes=3),
]


def test_work_does_not_depend_on_the_batch() -> None:
    positions, attempts = np.arange(100), np.arange(100) % 3
    choice = T.RandomChoice([T.Solarize(0.5), [T.ColorJitter(0.4, hue=0.1), T.RandomGrayscale(0.5)]], p=[0.3, 0.7])
    ops = [choice, *EVERYTHING[:3], T.RandomErasing(0.5, value="random"), EVERYTHING[-1]]
    whole = work(*ops, draw=Draw(1, 2, positions, attempts))
    for part in (slice(0, 1), slice(30, 77), slice(None, None, -3)):
        some = work(*ops, draw=Draw(1, 2, positions[part], attempts[part]))
        for name in WORK_COLUMNS:
            assert (getattr(some, name) == getattr(whole, name)[part]).all()
    other = work(*ops, draw=Draw(1, 2, positions, 7))
    assert (other.numbers[..., 0] != whole.numbers[..., 0]).any(axis=1).all()


def test_the_work_never_changes_between_versions() -> None:
    made = work(*EVERYTHING, draw=Draw(7, 3, np.arange(2)), width=224, height=224)
    assert made.steps.tolist() == [[4, 1, 2, 3, 0, 0], [3, 2, 4, 1, 0, 0]]
    factors = [[0.0022, 0.6751, 0.681, 0.8622, 0, 127.5], [1.0413, 1.2455, -0.0586, 0.9035, 0, 127.5]]
    np.testing.assert_allclose(made.numbers[..., 0], factors, atol=2e-3)
    assert made.erased.tolist() == [[[5, 131, 161, 222]], [[16, 145, 158, 205]]]
    assert made.patch.tolist() == [[54, 128, 112, 186], [0, 0, 121, 93]]
    np.testing.assert_allclose(made.own, [0.933, 0.7757], atol=1e-4)


HASHES: dict[Op, str] = {  # those of colours are in test_colours.py
    T.RandomHorizontalFlip(): "3040e869",
    T.RandomHorizontalFlip(alternating=True): "f0930dd8",
    T.RandomVerticalFlip(): "21cede7a",
    T.RandomRotation(30): "63bb1886",
    T.RandomAffine(30, (0.1, 0.1), (0.5, 2), (-5, 5, -5, 5)): "0e5aabff",
    T.RandomPerspective(): "90af8bda",
    T.RandAugment(): "e8215bdc",
    T.TrivialAugmentWide(): "a3d71960",
    T.AutoAugment(): "80c34309",
    T.timm_policy("rand-m9-mstd0.5-tweights"): "41126750",
    T.RandomChoice([T.RandomInvert(), T.RandomEqualize()]): "77c408a6",
    T.RandomApply([T.RandomInvert()]): "1cf5e7b6",
    T.RandomOrder([T.RandomInvert(), T.RandomEqualize()]): "af7f4c07",
    T.RandomErasing(value="color", count=(1, 3)): "8c90a803",
    T.RandomErasing(value="random"): "bd6d1e99",
    Mixes((T.MixUp(alpha=0.3, num_classes=3, p=0.5), T.CutMix(num_classes=3)), (0.5, 0.5)): "2ffc892e",
}


def test_the_names_of_draws_never_change() -> None:
    public = {each for each in vars(T).values() if isinstance(each, type) and issubclass(each, ImageOp)}
    assert {type(op) for op in HASHES} >= {each for each in public if each.__module__ != colours.__name__}
    assert {op: work_hash(op) for op in HASHES} == HASHES
