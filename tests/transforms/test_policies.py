"""Choices and policies: which operations, how often, how strong."""

import numpy as np
import pytest
from transform_draws import FREQUENCY, WIDTH, N, equally_likely, numbers_of, share_of, work

from iofast import transforms as T
from iofast.errors import OptionError
from iofast.work import Step


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
