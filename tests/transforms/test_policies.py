"""Policies: which operations, how often, how strong."""

from __future__ import annotations

import numpy as np
import pytest
from transform_draws import WIDTH, N, equally_likely, numbers_of, share_of, work

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


@pytest.mark.parametrize("name", ["imagenet", "cifar10", "svhn"])
def test_autoaugment_keeps_pairs_together(name: str) -> None:
    made = work(T.AutoAugment(name))
    assert made.steps.shape == (N, 2)
    pairs = {tuple(pair) for pair in made.steps.tolist()}
    assert 15 < len(pairs) < 70  # either may be left out


def test_autoaugment_has_its_probabilities() -> None:
    made = work(T.AutoAugment("svhn"))
    inverted = (made.steps == Step.SOLARIZE) & (made.numbers[..., 0] == 0)
    chances = {0: 0.9 + 0.9 + 0.9 + 0.8 + 0.6, 1: 0.2 + 0.7 + 0.4 + 0.7 + 0.6 + 0.8 + 0.1}
    for place, chance in chances.items():
        assert inverted[:, place].mean() == pytest.approx(chance / 25, abs=0.01)


def test_augmix_adds_the_image_and_its_chains() -> None:
    made = work(T.AugMix())
    assert made.steps[0, [0, 4, 8, 12, 13]].tolist() == [Step.KEEP, Step.ADD, Step.ADD, Step.ADD, Step.SUM]
    shares = made.numbers[:, [0, 4, 8, 12], 0].astype(np.float64)
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-5)
    assert shares[:, 0].mean() == pytest.approx(0.5, abs=0.01)  # Dirichlet(1, 1)
    assert shares[:, 1].mean() == pytest.approx(1 / 6, abs=0.01)
    depth = (made.steps[:, 1:4] != Step.NOTHING).sum(axis=1)
    assert depth.max() == 3
    assert (made.steps[:, 1] != Step.NOTHING).all()
    assert (made.steps[:, 3] != Step.NOTHING).mean() == pytest.approx(1 / 3, abs=0.02)
    plain = work(T.AugMix(all_ops=False, chain_depth=2))
    assert plain.steps.shape == (N, 1 + 3 * 3 + 1)
    assert not np.isin(plain.steps, (Step.BRIGHTNESS, Step.CONTRAST, Step.SATURATION, Step.SHARPNESS)).any()


class TestTimm:
    def test_reads_its_strings(self) -> None:
        made = T.timm_policy("rand-m9-mstd0.5-inc1")
        assert len(made.layers) == 2
        assert len(made.layers[0].entries) == 15
        assert {entry.p for entry in made.layers[0].entries} == {0.5}
        strong = T.timm_policy("rand-m15-n3-p1-mmax20-mstd101")
        assert len(strong.layers) == 3
        assert {entry.p for entry in strong.layers[0].entries} == {1.0}
        assert {(each.strength.low, each.strength.high, each.strength.most) for each in strong.layers[0].entries} == {
            (0, 1.5, 2.0)
        }

    def test_magnitudes_are_normal_and_cut_at_ten(self) -> None:
        made = work(T.timm_policy("rand-m9-mstd0.5-p1-n1"))
        factors = numbers_of(made, Step.BRIGHTNESS)[:, 0]
        levels = (factors - 0.1) / 0.18
        assert levels.max() <= 10.0001
        assert np.median(levels) == pytest.approx(9, abs=0.08)
        assert (levels > 9.999).mean() == pytest.approx(0.0228, abs=0.012)  # two deviations up
        assert (levels < 8.5).mean() == pytest.approx(0.1587, abs=0.03)

    def test_half_of_the_operations_are_left_out(self) -> None:
        made = work(T.timm_policy("rand-m9"))
        assert (made.steps != Step.NOTHING).mean() == pytest.approx(0.5, abs=0.01)

    def test_with_weights_no_operation_comes_twice(self) -> None:
        made = work(T.timm_policy("rand-m9-p1-t3a-n1"), T.timm_policy("rand-m9-p1-tweights"))
        assert set(np.unique(made.steps[:, 0])) == {Step.SATURATION, Step.SOLARIZE, Step.BLUR}
        twice = (made.steps[:, 1] == made.steps[:, 2]) & (made.steps[:, 1] == Step.SHARPNESS)
        assert not twice.any()
        turned = numbers_of(made, Step.WARP_BILINEAR, 1)
        turns = (turned[:, 1] != 0) & (turned[:, 3] != 0)
        assert turns.sum() / N == pytest.approx(3 / 10.05, abs=0.02)

    def test_augmix_has_chains_of_its_own(self) -> None:
        made = work(T.timm_policy("augmix-m5-w4-d2"))
        assert made.steps[0, [0, 3, 6, 9, 12, 13]].tolist() == [Step.KEEP, *[Step.ADD] * 4, Step.SUM]
        shares = made.numbers[:, [0, 3, 6, 9, 12], 0].astype(np.float64)
        np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-5)
        turned = numbers_of(made, Step.WARP_BILINEAR, 1)
        angles = np.degrees(np.arctan2(turned[:, 1], turned[:, 0]))[(turned[:, 1] != 0) & (turned[:, 3] != 0)]
        assert np.abs(angles).max() <= 15.001  # of 30 at half of the magnitudes, evenly
        assert np.abs(angles).mean() == pytest.approx(7.5, abs=0.6)
        deep = work(T.timm_policy("augmix-m3-a0.5"))
        assert (deep.steps[:, 3] != Step.NOTHING).mean() == pytest.approx(1 / 3, abs=0.02)
        assert deep.numbers[:, 0, 0].var() == pytest.approx(1 / 8, abs=0.01)  # Beta(0.5, 0.5)

    @pytest.mark.parametrize(("config", "posterize"), [("original", 7), ("originalr", 1), ("v0", 2), ("v0r", 2)])
    def test_autoaugment_is_one_of_its_pairs(self, config: str, posterize: float) -> None:
        first, second = T.timm_policy(config).layers
        assert len(first.entries) == len(second.entries) == 25
        made = work(T.timm_policy(config))
        both = (made.steps == Step.EQUALIZE).all(axis=1)
        chance = {"o": 3 * 0.48 / 25, "v": 0.0}[config[0]]  # Equalize 0.8 and 0.6, twice, and 0 and 0.8
        assert both.mean() == pytest.approx(chance * 2 / 3 if chance else 0, abs=0.01)
        bits = np.unique(made.numbers[made.steps == Step.POSTERIZE][:, 0])
        assert posterize in bits
        assert bits.min() >= 0

    def test_autoaugment_with_a_deviation(self) -> None:
        made = work(T.timm_policy("v0-mstd0.5"))
        assert len(np.unique(made.numbers[made.steps == Step.SATURATION])) > 100
        assert len(np.unique(work(T.timm_policy("v0")).numbers[made.steps == Step.SATURATION])) < 12

    def test_three_augment(self) -> None:
        made = work(T.timm_policy("3a"))
        assert made.steps.shape[1] == 1
        for step in (Step.SOLARIZE, Step.SATURATION, Step.BLUR):
            assert share_of(made, step) == pytest.approx(1 / 3, abs=0.03)
        assert set(numbers_of(made, Step.SOLARIZE)[:, 0]) == {128}
        assert set(numbers_of(made, Step.SATURATION)[:, 0]) == {0}
        assert np.ptp(numbers_of(made, Step.BLUR)[:, 0]) > 1.8

    @pytest.mark.parametrize(
        "config",
        [
            *("", "rand-x3", "rand-m", "rand-tnone", "rand-mstd0.5.1", "v1", "original-m3", "augmix-n2", "augmix-m"),
            *("augmix-w0", "augmix-a0", "3a-m2", "v0-m5", "mstd0.5", "rand-w3"),
            *("rand-n16-tweights", "rand-n15-t3aw"),
        ],
    )
    def test_other_strings_are_refused(self, config: str) -> None:
        with pytest.raises(OptionError, match=r"timm_policy: (expected|w must be|n must be)"):
            T.timm_policy(config)


def test_a_policy_may_stand_in_a_choice() -> None:
    made = work(T.RandomApply([T.RandAugment(1)], p=0.25), T.RandomChoice([T.TrivialAugmentWide(), T.Grayscale()]))
    assert made.steps.shape == (N, 2)
    assert share_of(made, Step.WARP_NEAREST) == pytest.approx(0.25 * 5 / 14, abs=0.02)
