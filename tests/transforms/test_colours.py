"""Operations on levels, choices and policies: what they draw, how often, how strong, and what they make of pixels."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pixel_work import apply, is_uniform
from transform_draws import FREQUENCY, WIDTH, N, equally_likely, numbers_of, share_of, work, work_hash

from iofast import transforms as T
from iofast.choices import Draw
from iofast.errors import OptionError
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


def test_randaugment_takes_each_of_fourteen() -> None:
    made = work(T.RandAugment(2, 9))
    assert made.steps.shape == (N, 2)
    codes, counts = np.unique(made.steps[:, 0], return_counts=True)
    warped = codes == Step.WARP_NEAREST
    assert equally_likely(np.append(counts[~warped], counts[warped] / 5))  # five of the fourteen are warps
    assert len(np.unique(made.steps, axis=0)) > 80  # both operations of an image are independent
    strength = 9 / 30
    factors = {round(1 - 0.9 * strength, 4), round(1 + 0.9 * strength, 4)}
    assert set(np.round(numbers_of(made, Step.BRIGHTNESS, 0)[:, 0], 4)) == factors
    assert set(numbers_of(made, Step.POSTERIZE, 0)[:, 0]) == {7}
    np.testing.assert_allclose(numbers_of(made, Step.SOLARIZE, 0)[:, 0], 255 * (1 - strength), rtol=1e-6)
    warps = numbers_of(made, Step.WARP_NEAREST, 0)
    across = warps[(warps[:, 0] == 1) & (warps[:, 2] != 0)]
    assert set(np.abs(across[:, 2])) == {np.floor(150 / 331 * WIDTH * strength)}
    sheared = warps[(warps[:, 0] == 1) & (warps[:, 1] != 0)]
    np.testing.assert_allclose(np.abs(sheared[:, 1]), 0.3 * strength, rtol=1e-5)
    assert abs(np.sign(sheared[:, 1]).mean()) < 0.15


def test_trivialaugment_takes_any_strength() -> None:
    made = work(T.TrivialAugmentWide())
    factors = numbers_of(made, Step.BRIGHTNESS)[:, 0]
    strengths, counts = np.unique(np.round(np.abs(factors - 1), 4), return_counts=True)
    np.testing.assert_allclose(strengths, np.round(np.linspace(0, 0.99, 31), 4), atol=2e-4)
    assert equally_likely(counts)
    turns = numbers_of(made, Step.WARP_NEAREST)
    angles = np.rad2deg(np.arctan2(turns[:, 3], turns[:, 0]))[(turns[:, 2] != 0) & (turns[:, 3] != 0)]
    assert np.abs(angles).max() == pytest.approx(135, abs=1e-3)


def test_autoaugment_keeps_pairs_together_and_has_their_probabilities() -> None:
    for name in ("imagenet", "cifar10", "svhn"):
        made = work(T.AutoAugment(name))
        pairs = {tuple(pair) for pair in made.steps.tolist()}
        assert 15 < len(pairs) < 70  # either may be left out
    inverted = (made.steps == Step.SOLARIZE) & (made.numbers[..., 0] == 0)
    chances = {0: 0.9 + 0.9 + 0.9 + 0.8 + 0.6, 1: 0.2 + 0.7 + 0.4 + 0.7 + 0.6 + 0.8 + 0.1}
    for place, chance in chances.items():
        assert inverted[:, place].mean() == pytest.approx(chance / 25, abs=0.01)


class TestTimm:
    def test_reads_its_strings(self) -> None:
        made, strong = T.timm_policy("rand-m9-mstd0.5-inc1"), T.timm_policy("rand-m15-n3-p1-mmax20-mstd101")
        assert [len(layer.entries) for layer in made.layers] == [15, 15]
        assert {entry.p for entry in made.layers[0].entries} == {0.5}
        entries = {
            (each.p, each.strength.low, each.strength.high, each.strength.most) for each in strong.layers[2].entries
        }
        assert (len(strong.layers), entries) == (3, {(1.0, 0, 1.5, 2.0)})

    def test_magnitudes_are_normal_and_cut_at_ten(self) -> None:
        made = work(T.timm_policy("rand-m9-mstd0.5-p1-n1"))
        factors = numbers_of(made, Step.BRIGHTNESS)[:, 0]
        assert (work(T.timm_policy("rand-m9")).steps != Step.NOTHING).mean() == pytest.approx(0.5, abs=0.01)
        levels = (factors - 0.1) / 0.18
        assert levels.max() <= 10.0001
        assert np.median(levels) == pytest.approx(9, abs=0.08)
        assert (levels > 9.999).mean() == pytest.approx(0.0228, abs=0.012)  # two deviations up
        assert (levels < 8.5).mean() == pytest.approx(0.1587, abs=0.03)

    def test_with_weights_no_operation_comes_twice(self) -> None:
        made = work(T.timm_policy("rand-m9-p1-tweights"))
        twice = (made.steps[:, 0] == made.steps[:, 1]) & (made.steps[:, 0] == Step.SHARPNESS)
        assert not twice.any()
        turned = numbers_of(made, Step.WARP_BILINEAR, 0)
        turns = (turned[:, 1] != 0) & (turned[:, 3] != 0)
        assert turns.sum() / N == pytest.approx(3 / 10.05, abs=0.02)

    def test_other_strings_are_refused(self) -> None:
        wrong = ["", "rand-x3", "rand-m", "rand-tnone", "rand-t3a", "rand-mstd0.5.1", "mstd0.5", "rand-w3", "original"]
        for config in (*wrong, "v0", "3a", "augmix-m5-w4-d2", "rand-n16-tweights"):
            with pytest.raises(OptionError, match=r"timm_policy: (expected|n must be)"):
                T.timm_policy(config)


class TestRandomChoice:
    def test_choices_have_their_probabilities_and_are_independent(self) -> None:
        made = work(T.RandomChoice([T.Grayscale(), T.Solarize(0.5), T.ColorJitter(hue=0.1)], p=[3, 1, 0]))
        shares = [share_of(made, step) for step in (Step.SATURATION, Step.SOLARIZE, Step.HUE)]
        np.testing.assert_allclose(shares, [0.75, 0.25, 0], atol=FREQUENCY)
        even = work(*[T.RandomChoice([T.Grayscale(), T.Solarize(0.5)])] * 2)
        assert share_of(even, Step.SOLARIZE) == pytest.approx(0.5, abs=FREQUENCY)
        assert np.mean(even.steps[:, 0] == even.steps[:, 1]) == pytest.approx(0.5, abs=0.05)

    def test_lists_of_different_lengths(self) -> None:
        lists = [[T.ColorJitter(0.4, 0.4), T.Grayscale()], T.Solarize(0.25)]
        made = work(T.RandomChoice(lists), T.RandomSolarize(0.5))
        assert made.steps.shape == (N, 4)
        first = made.steps[:, 0] != Step.SOLARIZE
        assert (np.sort(made.steps[first, :3]) == [Step.BRIGHTNESS, Step.CONTRAST, Step.SATURATION]).all()
        assert (made.steps[~first, 1:3] == Step.NOTHING).all()
        np.testing.assert_allclose(made.numbers[..., 0][~first, 0], 63.75, atol=2e-3)
        assert (made.steps[first, 3] == Step.SOLARIZE).mean() == pytest.approx(0.5, abs=0.05)  # independent

    def test_an_empty_list_changes_nothing(self) -> None:
        made = work(T.RandomChoice([T.ColorJitter(0.4), []], p=[0.8, 0.2]))
        assert made.steps.shape == (N, 1)
        assert share_of(made, Step.NOTHING) == pytest.approx(0.2, abs=FREQUENCY)
        assert work(T.RandomChoice([[], []])).steps.shape == (N, 0)


class TestSeveral:
    def test_apply_does_all_or_nothing(self) -> None:
        made = work(T.RandomApply([T.RandomInvert(0.5), T.ColorJitter(0.4, 0.4)], p=0.3), T.RandomEqualize())
        assert made.steps.shape == (N, 4)
        done = made.steps[:, 1] != Step.NOTHING
        assert done.mean() == pytest.approx(0.3, abs=FREQUENCY)
        assert (made.steps[~done, :3] == Step.NOTHING).all()
        assert (made.steps[done, 0] == Step.SOLARIZE).mean() == pytest.approx(0.5, abs=0.03)  # still independent
        assert (made.steps[done, 3] == Step.EQUALIZE).mean() == pytest.approx(0.5, abs=0.03)

    def test_every_order_is_equally_likely(self) -> None:
        made = work(T.RandomOrder([T.ColorJitter(0.4, 0.4), T.RandomPosterize(3, 1), T.RandomEqualize(1)]))
        assert made.steps.shape == (N, 6)
        kept = made.steps[made.steps != Step.NOTHING].reshape(N, 4)
        place = (kept == Step.POSTERIZE).argmax(axis=1), (kept == Step.EQUALIZE).argmax(axis=1)
        jitter = np.sort(kept[(kept == Step.BRIGHTNESS) | (kept == Step.CONTRAST)].reshape(N, 2))
        assert (jitter == [Step.BRIGHTNESS, Step.CONTRAST]).all()
        orders, counts = np.unique(np.stack(place, axis=1), axis=0, return_counts=True)
        assert orders.tolist() == [[0, 1], [0, 3], [1, 0], [2, 3], [3, 0], [3, 2]]  # the jitter stays together
        assert equally_likely(counts)

    def test_choices_within_choices(self) -> None:
        inner = T.RandomChoice([T.Grayscale(), []])
        made = work(T.RandomChoice([T.RandomApply([inner], 0.5), T.RandomOrder([T.Solarize(0.5), T.Grayscale()])]))
        assert share_of(made, Step.NOTHING) == pytest.approx(3 / 8, abs=0.02)
