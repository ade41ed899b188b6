"""Operations on levels: what they draw, and what they make of pixels."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pixel_work import apply, is_uniform
from transform_draws import FREQUENCY, N, equally_likely, numbers_of, share_of, work, work_hash

from iofast import transforms as T
from iofast.choices import Draw
from iofast.transforms.colours import Luma
from iofast.transforms.mixing import Mixes
from iofast.transforms.transform import ImageOp, Op
from iofast.work import CHANNELS, Step

# hashes of what is drawn: they never change
HASHES: dict[Op, str] = {
    T.ColorJitter(0.4, 0.4, 0.4, 0.1): "ab7e40a1",
    T.RandomChannelPermutation(): "1a312cfc",
    T.Grayscale(): "b3c589c4",
    T.RandomGrayscale(0.5): "87b34d05",
    Luma(): "8a0f9369",
    T.Solarize(0.5): "f80531e6",
    T.RandomSolarize(0.5): "4e60d047",
    T.RandomInvert(): "4d2385de",
    T.RandomPosterize(3): "e69328a5",
    T.RandomAutocontrast(): "25bd7547",
    T.RandomEqualize(): "f969ac8f",
    T.RandomAdjustSharpness(2): "513ae6e4",
    T.GaussianBlur(3): "6c2af619",
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
LEVELS: NDArray[np.int64] = np.arange(256)
MADE = {  # what becomes of each level
    T.Solarize(100 / 255): np.where(LEVELS >= 100, 255 - LEVELS, LEVELS),
    T.RandomInvert(1): 255 - LEVELS,
    T.RandomPosterize(3, 1): LEVELS & 0b11100000,
}


def test_what_is_drawn_never_changes() -> None:
    public = {each for each in vars(T).values() if isinstance(each, type) and issubclass(each, ImageOp)}
    assert {type(op) for op in HASHES} >= public | {Luma}
    assert {op: work_hash(op) for op in HASHES} == HASHES


@pytest.mark.parametrize("op", MADE, ids=lambda op: type(op).__name__)
def test_levels(op: ImageOp) -> None:
    """Each channel by itself."""
    image = np.stack((LEVELS, LEVELS[::-1], LEVELS)).reshape(1, 3, 16, 16).astype(np.uint8)
    drawn = T.compile([op]).work(Draw(0, 0, np.zeros(1, np.int64)), [16], [16])
    made = apply(torch.from_numpy(image), [op], work=drawn, dtype=torch.uint8)
    assert made.flatten(2).tolist() == [[MADE[op].tolist(), MADE[op][::-1].tolist(), MADE[op].tolist()]]


class TestColorJitter:
    def test_factors_are_uniform_and_orders_equally_likely(self) -> None:
        made = work(T.ColorJitter(0.4, (0.5, 3.0), 2.0, 0.1))
        ranges = {1: (0.6, 1.4), 2: (0.5, 3.0), 3: (0.0, 3.0), 4: (-0.1, 0.1)}
        for step, (low, high) in ranges.items():
            factors = numbers_of(made, Step(step))[:, 0]
            assert len(factors) == N
            assert is_uniform(factors, low, high)
        orders, counts = np.unique(made.steps, axis=0, return_counts=True)
        assert {tuple(order) for order in orders.tolist()} == set(permutations(range(1, 5)))
        assert equally_likely(counts)
        channels = numbers_of(work(T.RandomChannelPermutation()), Step.PERMUTE)
        assert equally_likely(np.bincount(channels[:, 0].astype(int), minlength=len(CHANNELS)))

    def test_neutral_factors_are_no_steps(self) -> None:
        assert work(T.ColorJitter()).steps.shape == (N, 0)
        made = work(T.ColorJitter(contrast=0.5, hue=0.2))
        assert sorted(map(tuple, np.unique(made.steps, axis=0).tolist())) == [(2, 4), (4, 2)]
        whole = work(T.ColorJitter(0.3, 0.5, 0.3, 0.2))  # the same numbers, whatever other factors there are
        assert (numbers_of(made, Step.HUE) == numbers_of(whole, Step.HUE)).all()


def test_single_steps_have_their_probabilities_and_numbers() -> None:
    ops = {
        T.RandomGrayscale(0.2): (0.2, Step.SATURATION, 0),
        T.RandomSolarize(0.5, p=0.7): (0.7, Step.SOLARIZE, 127.5),
        T.Grayscale(): (1, Step.SATURATION, 0),
        T.Solarize(0.25): (1, Step.SOLARIZE, 63.75),
        T.RandomInvert(0.3): (0.3, Step.SOLARIZE, 0),
        T.RandomPosterize(3): (0.5, Step.POSTERIZE, 3),
        T.RandomAutocontrast(0.6): (0.6, Step.AUTOCONTRAST, 0),
        T.RandomEqualize(0.1): (0.1, Step.EQUALIZE, 0),
        T.RandomAdjustSharpness(1.5): (0.5, Step.SHARPNESS, 1.5),
    }
    made = work(*ops)
    for column, (p, step, number) in enumerate(ops.values()):
        assert share_of(made, step, column) == pytest.approx(p, abs=FREQUENCY)
        assert (made.steps[:, column] == Step.NOTHING).mean() == pytest.approx(1 - p, abs=FREQUENCY)
        np.testing.assert_allclose(numbers_of(made, step, column)[:, 0], number, atol=2e-3)
    random = [column for column, (p, _, _) in enumerate(ops.values()) if p < 1]
    correlations = np.corrcoef((made.steps[:, random] != Step.NOTHING).T)
    assert np.abs(correlations - np.eye(len(random))).max() < 4.5 / math.sqrt(N)


def test_blurs() -> None:
    made = work(T.GaussianBlur((5, 9), (0.1, 2.0)), T.GaussianBlur(3, 0.7))
    assert (made.steps == Step.BLUR).all()
    sigma, across, same, down = made.numbers[:, 0, :4].T
    assert is_uniform(sigma, 0.1, 2.0)
    assert (sigma == same).all()
    assert set(across.tolist()) == {2.0}
    assert set(down.tolist()) == {4.0}
    np.testing.assert_allclose(made.numbers[:, 1, :4], [[0.7, 1, 0.7, 1]] * N, rtol=1e-6)
