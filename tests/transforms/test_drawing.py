"""What is drawn for pixel operations, against torchvision's documented algorithms written out for one image."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pixel_work import is_uniform

from iofast import transforms as T
from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.ops import Op, noise_amounts
from iofast.work import Step, Work

N = 20_000
MANY = Draw(4, 1, np.arange(N))


def work(ops: list[Op], draw: Draw = MANY, width: int = 64, height: int = 48) -> Work:
    return T.compile(ops).work(draw, np.full(len(draw), width), np.full(len(draw), height))


class TestColorJitter:
    def test_factors_are_uniform_and_orders_equally_likely(self) -> None:
        made = work([T.ColorJitter(0.4, (0.5, 3.0), 2.0, 0.1)])
        ranges = {
            Step.BRIGHTNESS: (0.6, 1.4),
            Step.CONTRAST: (0.5, 3.0),
            Step.SATURATION: (0.0, 3.0),
            Step.HUE: (-0.1, 0.1),
        }
        drawn = [made.numbers[..., 0][made.steps == code] for code in ranges]
        for factors, (low, high) in zip(drawn, ranges.values(), strict=True):
            assert len(factors) == N
            assert is_uniform((factors.astype(np.float64) - low) / (high - low))
        orders, counts = np.unique(made.steps, axis=0, return_counts=True)
        assert {tuple(order) for order in orders.tolist()} == set(permutations(range(1, 5)))
        assert ((counts - N / 24) ** 2 / (N / 24)).sum() < 50  # 23 degrees of freedom, fixed seed

    def test_what_is_left_alone_is_no_step(self) -> None:
        assert work([T.ColorJitter()]).steps.shape == (N, 0)
        made = work([T.ColorJitter(contrast=0.5, hue=0.2)])
        assert sorted(map(tuple, np.unique(made.steps, axis=0).tolist())) == [(2, 4), (4, 2)]
        whole = work([T.ColorJitter(0.3, 0.5, 0.3, 0.2)])  # the same numbers, whatever stands beside them
        assert (made.numbers[..., 0][made.steps == Step.HUE] == whole.numbers[..., 0][whole.steps == Step.HUE]).all()

    def test_two_of_them_are_drawn_apart(self) -> None:
        made = work([T.ColorJitter(0.4), T.ColorJitter(0.4)])
        assert abs(np.corrcoef(made.numbers[..., 0].T)[0, 1]) < 4 / math.sqrt(N)


def test_probabilities() -> None:
    made = work([T.RandomGrayscale(0.2), T.RandomSolarize(0.5, p=0.7), T.Grayscale(), T.Solarize(0.25)])
    assert np.unique(made.steps, axis=0).shape[0] == 4  # independent
    share = (made.steps != Step.NOTHING).mean(axis=0)
    np.testing.assert_allclose(share, [0.2, 0.7, 1, 1], atol=4 * 0.5 / math.sqrt(N))
    assert made.steps.max(axis=0).tolist() == [Step.SATURATION, Step.SOLARIZE, Step.SATURATION, Step.SOLARIZE]
    np.testing.assert_allclose(made.numbers[..., 0][0], [0, 127.5, 0, 63.75], atol=2e-3)


class TestRandomChoice:
    def test_each_as_often_as_it_is_said(self) -> None:
        made = work([T.RandomChoice([T.Grayscale(), T.Solarize(0.5), T.ColorJitter(hue=0.1)], p=[3, 1, 0])])
        share = [(made.steps[:, 0] == step).mean() for step in (Step.SATURATION, Step.SOLARIZE, Step.HUE)]
        np.testing.assert_allclose(share, [0.75, 0.25, 0], atol=4 * 0.5 / math.sqrt(N))
        even = work([T.RandomChoice([T.Grayscale(), T.Solarize(0.5)])])
        assert (even.steps[:, 0] == Step.SOLARIZE).mean() == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(N))

    @pytest.mark.parametrize("unit", [5e-324, 1.7e308])
    def test_weights_of_any_size(self, unit: float) -> None:
        assert T.RandomChoice([T.Grayscale(), T.Solarize(0.5)], p=[unit, unit]).p == (0.5, 0.5)

    def test_lists_of_different_lengths(self) -> None:
        lists = [[T.ColorJitter(0.4, 0.4), T.Grayscale()], T.Solarize(0.25)]
        made = work([T.RandomChoice(lists), T.RandomSolarize(0.5)])
        assert made.steps.shape == (N, 4)
        first = made.steps[:, 0] != Step.SOLARIZE
        assert (np.sort(made.steps[first, :3]) == [Step.BRIGHTNESS, Step.CONTRAST, Step.SATURATION]).all()
        assert (made.steps[~first, 1:3] == Step.NOTHING).all()
        np.testing.assert_allclose(made.numbers[..., 0][~first, 0], 63.75, atol=2e-3)
        assert (made.steps[first, 3] == Step.SOLARIZE).mean() == pytest.approx(0.5, abs=0.05)  # independent

    def test_an_empty_list_changes_nothing(self) -> None:
        made = work([T.RandomChoice([T.ColorJitter(0.4), []], p=[0.8, 0.2])])
        assert made.steps.shape == (N, 1)
        assert (made.steps == Step.NOTHING).mean() == pytest.approx(0.2, abs=4 * 0.4 / math.sqrt(N))
        assert work([T.RandomChoice([[], []])]).steps.shape == (N, 0)

    def test_two_choices_are_independent(self) -> None:
        choice = T.RandomChoice([T.Grayscale(), T.Solarize(0.5)])
        made = work([choice, choice]).steps
        assert np.mean(made[:, 0] == made[:, 1]) == pytest.approx(0.5, abs=0.05)


class TestSeveral:
    def test_all_or_nothing(self) -> None:
        made = work([T.RandomApply([T.RandomInvert(0.5), T.ColorJitter(0.4, 0.4)], p=0.3), T.RandomEqualize()])
        assert made.steps.shape == (N, 4)
        done = made.steps[:, 1] != Step.NOTHING
        assert done.mean() == pytest.approx(0.3, abs=4 * 0.5 / math.sqrt(N))
        assert (made.steps[~done, :3] == Step.NOTHING).all()
        assert (made.steps[done, 0] == Step.SOLARIZE).mean() == pytest.approx(0.5, abs=0.03)  # each still by itself
        assert (made.steps[done, 3] == Step.EQUALIZE).mean() == pytest.approx(0.5, abs=0.03)

    def test_every_order_as_often(self) -> None:
        made = work([T.RandomOrder([T.ColorJitter(0.4, 0.4), T.RandomPosterize(3, 1), T.RandomEqualize(1)])])
        assert made.steps.shape == (N, 6)
        kept = made.steps[made.steps != Step.NOTHING].reshape(N, 4)
        place = (kept == Step.POSTERIZE).argmax(axis=1), (kept == Step.EQUALIZE).argmax(axis=1)
        jitter = np.sort(kept[(kept == Step.BRIGHTNESS) | (kept == Step.CONTRAST)].reshape(N, 2))
        assert (jitter == [Step.BRIGHTNESS, Step.CONTRAST]).all()
        orders, counts = np.unique(np.stack(place, axis=1), axis=0, return_counts=True)
        assert orders.tolist() == [[0, 1], [0, 3], [1, 0], [2, 3], [3, 0], [3, 2]]  # the jitter is never torn
        assert ((counts - N / 6) ** 2 / (N / 6)).sum() < 20  # 5 degrees of freedom, fixed seed

    def test_choices_within_choices(self) -> None:
        inner = T.RandomChoice([T.Grayscale(), []])
        made = work([T.RandomChoice([T.RandomApply([inner], 0.5), T.RandomOrder([T.Solarize(0.5), T.Grayscale()])])])
        assert (made.steps[:, 0] == Step.NOTHING).mean() == pytest.approx(3 / 8, abs=0.02)


def test_blurs() -> None:
    made = work([T.GaussianBlur((5, 9), (0.1, 2.0)), T.GaussianBlur(3, 0.7)])
    assert (made.steps == Step.BLUR).all()
    sigma, across, same, down = made.numbers[:, 0, :4].T
    assert is_uniform((sigma.astype(np.float64) - 0.1) / 1.9)
    assert (sigma == same).all()
    assert set(across.tolist()) == {2.0}
    assert set(down.tolist()) == {4.0}
    np.testing.assert_allclose(made.numbers[:, 1, :4], [[0.7, 1, 0.7, 1]] * N, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.RandomPosterize(9), "bits must be a whole number from 0 to 8, found 9"),
        (lambda: T.RandomAdjustSharpness(-1), "sharpness_factor must be 0 to 63, found -1"),
        (lambda: T.GaussianBlur(4), r"kernel_size must be odd, 1 to 127, found 4"),
        (lambda: T.GaussianBlur(129), r"kernel_size must be odd, 1 to 127"),
        (lambda: T.GaussianBlur("x"), r"kernel_size must be a number or \(across, down\)"),
        (lambda: T.GaussianBlur(3, 0.0), "sigma must be"),
        (lambda: T.ColorJitter(brightness=(0, 64)), "brightness must be within 0 and 63"),
        (lambda: T.RandomApply([], 0.5), "RandomApply: transforms must be a list with something in it"),
        (lambda: T.RandomOrder([T.Normalize.imagenet()]), "RandomOrder: .* operations on images .* found Normalize"),
        (lambda: T.RandomApply([T.Grayscale()], 2), "RandomApply: p must be 0 to 1"),
    ],
)
def test_arguments_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


class TestRandomErasing:
    @given(
        seed=st.integers(0, 1000),
        size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
        scale=st.sampled_from([(0.02, 0.33), (0.5, 1.0), (0.9, 1.0), (0.0, 0.01)]),
        ratio=st.sampled_from([(0.3, 3.3), (1.0, 1.0), (0.01, 100.0)]),
    )
    def test_against_torchvision(
        self, seed: int, size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
    ) -> None:
        width, height = size
        draw = Draw(seed, 0, np.arange(5))
        made = work([T.RandomErasing(0.7, scale, ratio)], draw, width, height)
        for u, box in zip(draw.uniform("erasing", 23).tolist(), made.erased[:, 0].tolist(), strict=True):
            wanted = rectangle(width, height, u[1:], scale, ratio) if u[0] < 0.7 else None
            if wanted is None:
                assert (box[2] - box[0]) * (box[3] - box[1]) == 0
            else:
                assert box == wanted
                assert 0 <= box[0] <= box[2] <= height
                assert 0 <= box[1] <= box[3] <= width

    def test_each_erasing_has_its_value(self) -> None:
        ops: list[Op] = [
            T.RandomErasing(1, value=1.0),
            T.Normalize((0.5,), (0.25,)),
            T.RandomErasing(1, value=[1, 2, 3]),
        ]
        made = work(ops)
        np.testing.assert_allclose(made.fills[7], [[2, 2, 2], [1, 2, 3]])
        assert noise_amounts(ops).tolist() == [[0, 0, 0], [0, 0, 0]]
        assert noise_amounts([T.RandomErasing(value="random"), T.Normalize((0.5,), (0.25,))]).tolist() == [[4, 4, 4]]
        assert made.erased.shape == (N, 2, 4)
        assert (made.erased[:, 0] != made.erased[:, 1]).any(axis=1).mean() > 0.9


def rectangle(
    width: int, height: int, u: list[float], scale: tuple[float, float], ratio: tuple[float, float]
) -> list[int] | None:
    """torchvision's RandomErasing.get_params; u = place (top, left), then area and ratio of ten attempts."""
    for area_u, ratio_u in zip(u[2::2], u[3::2], strict=True):
        area = width * height * (scale[0] + (scale[1] - scale[0]) * area_u)
        aspect = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * ratio_u)
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if h < height and w < width:
            y, x = int(u[0] * (height - h + 1)), int(u[1] * (width - w + 1))
            return [y, x, y + h, x + w]
    return None


class TestMix:
    @pytest.mark.parametrize("alpha", [0.05, 0.2, 1.0, 3.0, 50.0])
    def test_shares_are_beta_distributed(self, alpha: float) -> None:
        drawn = MANY.beta("mix", alpha)
        assert 0 <= drawn.min() <= drawn.max() <= 1
        assert abs(drawn.mean() - 0.5) < 4 * drawn.std() / math.sqrt(N)
        assert drawn.var() == pytest.approx(0.25 / (2 * alpha + 1), rel=0.05)
        reference = np.sort(np.random.default_rng(0).beta(alpha, alpha, 10 * N))
        assert is_uniform(np.searchsorted(reference, drawn) / (10 * N)) or alpha < 0.1  # half of those are 0 or 1

    def test_mixup(self) -> None:
        made = work([T.MixUp(alpha=0.4, num_classes=5)])
        assert (made.share == MANY.beta("mix", 0.4).astype(np.float32)).all()
        assert (made.own == made.share).all()
        assert not made.patch.any()
        assert not made.mixes  # who with whom is the loader's to say

    @given(seed=st.integers(0, 1000), width=st.integers(1, 99), height=st.integers(1, 99))
    def test_cutmix_against_torchvision(self, seed: int, width: int, height: int) -> None:
        draw = Draw(seed, 0, np.arange(4))
        made = work([T.CutMix(num_classes=5)], draw, width, height)
        places = draw.uniform("mix place", 2).tolist()
        for row, (share, (left, top)) in enumerate(zip(draw.beta("mix", 1).tolist(), places, strict=True)):
            half = 0.5 * math.sqrt(1 - share)
            x, y, w, h = int(left * width), int(top * height), int(half * width), int(half * height)
            x0, y0, x1, y1 = max(x - w, 0), max(y - h, 0), min(x + w, width), min(y + h, height)
            assert made.patch[row].tolist() == [y0, x0, y1, x1]
            assert made.own[row] == pytest.approx(1 - (x1 - x0) * (y1 - y0) / (width * height))
            assert made.share[row] == 1

    def test_a_row_without_a_partner_is_not_mixed(self) -> None:
        made = work([T.CutMix(num_classes=5)], Draw(0, 0, np.arange(5))).paired(np.array([1, 0, 2, 4, 3]))
        assert made.mixes
        assert made.own[2] == made.share[2] == 1
        assert not made.patch[2].any()
        assert made.patch[[0, 1, 3, 4]].any(axis=1).all()


EVERYTHING: list[Op] = [
    T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    T.RandomGrayscale(0.3),
    T.RandomSolarize(0.5),
    T.RandomErasing(0.5),
    T.CutMix(num_classes=3),
]
CHOICE = T.RandomChoice([T.Solarize(0.5), [T.ColorJitter(0.4, hue=0.1), T.RandomGrayscale(0.5)]], p=[0.3, 0.7])


def test_work_does_not_depend_on_the_batch() -> None:
    positions, attempts = np.arange(100), np.arange(100) % 3
    ops = [CHOICE, *EVERYTHING[:3], T.RandomErasing(0.5, value="random"), EVERYTHING[-1]]
    whole = work(ops, Draw(1, 2, positions, attempts))
    for part in (slice(0, 1), slice(30, 77), slice(None, None, -3)):
        some = work(ops, Draw(1, 2, positions[part], attempts[part]))
        for name in ("steps", "numbers", "fills", "erased", "share", "patch", "own", "noise"):
            assert (getattr(some, name) == getattr(whole, name)[part]).all()
    other = work(ops, Draw(1, 2, positions, 7))
    assert (other.numbers[..., 0] != whole.numbers[..., 0]).any(axis=1).all()


def test_the_work_never_changes_between_versions() -> None:
    made = work(EVERYTHING, Draw(7, 3, np.arange(2)), 224, 224)
    assert made.steps.tolist() == [[4, 1, 2, 3, 0, 0], [3, 2, 4, 1, 0, 0]]
    factors = [[0.0022, 0.6751, 0.681, 0.8622, 0, 127.5], [1.0413, 1.2455, -0.0586, 0.9035, 0, 127.5]]
    np.testing.assert_allclose(made.numbers[..., 0], factors, atol=2e-3)
    assert made.erased.tolist() == [[[5, 131, 161, 222]], [[16, 145, 158, 205]]]
    assert made.patch.tolist() == [[54, 128, 112, 186], [0, 0, 121, 93]]
    np.testing.assert_allclose(made.own, [0.933, 0.7757], atol=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.ColorJitter(-0.1), "brightness must be within 0 and 63"),
        (lambda: T.ColorJitter(contrast=(0.5, 0.2)), "contrast"),
        (lambda: T.ColorJitter(saturation="much"), "saturation must be a number"),
        (lambda: T.ColorJitter(hue=0.6), "hue must be within -0.5 and 0.5"),
        (lambda: T.ColorJitter(brightness=math.nan), "brightness"),
        (lambda: T.Grayscale(1), "num_output_channels must be 3"),
        (lambda: T.RandomGrayscale(2), "p must be 0 to 1"),
        (lambda: T.Solarize(128), "128 / 255"),
        (lambda: T.RandomSolarize(0.5, p=-1), "p must be"),
        (lambda: T.RandomErasing(scale=(0.5, 2)), "scale must be 0 to 1"),
        (lambda: T.RandomErasing(ratio=(0, 1)), "ratio must be above 0"),
        (lambda: T.RandomErasing(ratio=(2, 1)), "ratio must be"),
        (lambda: T.RandomErasing(value="noise"), "value must be 1 or 3 finite"),
        (lambda: T.RandomErasing(p=1.5), "p must"),
        (lambda: T.RandomChoice([]), "must be a list with something in it"),
        (lambda: T.RandomChoice(T.Grayscale()), "must be a list with something in it"),
        (lambda: T.RandomChoice([T.Grayscale(), T.RandomErasing()]), r"operations on images .* found RandomErasing"),
        (lambda: T.RandomChoice([[T.CenterCrop(3)]]), r"operations on images .* found CenterCrop"),
        (lambda: T.RandomChoice([T.Grayscale()], p=[0.5, 0.5]), "p must be 1 numbers"),
        (lambda: T.RandomChoice([T.Grayscale()] * 2, p=[-1, 2]), "p must be 2 numbers from 0 on"),
        (lambda: T.RandomChoice([T.Grayscale()], p=[0]), "not all 0"),
        (lambda: T.MixUp(num_classes=0), "num_classes must be a whole number of 1 or more"),
        (lambda: T.MixUp(num_classes=None), "whole number"),
        (lambda: T.CutMix(alpha=0, num_classes=4), "alpha must be above 0"),
        (lambda: MANY.beta("mix", -1), "alpha"),
    ],
)
def test_impossible_options_are_refused(make: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    "transforms",
    [
        [T.Normalize.imagenet(), T.ColorJitter(0.4)],
        [T.RandomErasing(), T.RandomGrayscale()],
        [T.ColorJitter(0.4), T.RandomResizedCrop(8)],
        [T.Solarize(0.5), T.RandomResizedCrop(8)],
        [T.MixUp(num_classes=3), T.Normalize.imagenet()],
        [T.MixUp(num_classes=3), T.CutMix(num_classes=3)],
    ],
)
def test_an_order_that_makes_no_sense(transforms: list[T.Transform]) -> None:
    with pytest.raises(
        OptionError,
        match=r"cannot follow .* operations on images .* RandomErasing, then MixUp or CutMix or RandomChoice of them$",
    ):
        T.compile(transforms)


def test_reprs_can_be_read_back() -> None:
    moves = T.RandomAffine(3, shear=5), T.timm_policy("rand-m9"), T.RandomCrop(8, padding=2), T.AugMix()
    for op in (*EVERYTHING, *moves, T.Grayscale(), T.Solarize(0.5), T.MixUp(alpha=0.2, num_classes=7)):
        assert eval(repr(op), vars(T)) == op
