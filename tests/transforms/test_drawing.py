"""The random numbers of pixel operations, against torchvision's documented algorithms written out for one image."""

from __future__ import annotations

import hashlib
import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pixel_work import is_uniform
from transform_draws import FREQUENCY, WORK_COLUMNS, N, equally_likely, numbers_of, share_of, work

from iofast import transforms as T
from iofast.choices import Draw
from iofast.transforms.colours import Luma
from iofast.transforms.erasing import noise_amounts
from iofast.transforms.mixing import Mixes
from iofast.transforms.transform import ImageOp, Op
from iofast.work import CHANNELS, Step


class TestColorJitter:
    def test_factors_are_uniform_and_orders_equally_likely(self) -> None:
        made = work(T.ColorJitter(0.4, (0.5, 3.0), 2.0, 0.1))
        ranges = {
            Step.BRIGHTNESS: (0.6, 1.4),
            Step.CONTRAST: (0.5, 3.0),
            Step.SATURATION: (0.0, 3.0),
            Step.HUE: (-0.1, 0.1),
        }
        for step, (low, high) in ranges.items():
            factors = numbers_of(made, step)[:, 0]
            assert len(factors) == N
            assert is_uniform(factors, low, high)
        orders, counts = np.unique(made.steps, axis=0, return_counts=True)
        assert {tuple(order) for order in orders.tolist()} == set(permutations(range(1, 5)))
        assert equally_likely(counts)

    def test_neutral_factors_are_no_steps(self) -> None:
        assert work(T.ColorJitter()).steps.shape == (N, 0)
        made = work(T.ColorJitter(contrast=0.5, hue=0.2))
        assert sorted(map(tuple, np.unique(made.steps, axis=0).tolist())) == [(2, 4), (4, 2)]
        whole = work(T.ColorJitter(0.3, 0.5, 0.3, 0.2))  # the same numbers, whatever other factors there are
        assert (numbers_of(made, Step.HUE) == numbers_of(whole, Step.HUE)).all()

    def test_two_of_them_are_independent(self) -> None:
        made = work(T.ColorJitter(0.4), T.ColorJitter(0.4))
        assert abs(np.corrcoef(made.numbers[..., 0].T)[0, 1]) < 4 / math.sqrt(N)


def test_channels_come_in_each_order() -> None:
    orders = numbers_of(work(T.RandomChannelPermutation()), Step.PERMUTE)
    assert equally_likely(np.bincount(orders[:, 0].astype(int), minlength=len(CHANNELS)))


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


class TestRandomChoice:
    def test_choices_have_their_probabilities(self) -> None:
        made = work(T.RandomChoice([T.Grayscale(), T.Solarize(0.5), T.ColorJitter(hue=0.1)], p=[3, 1, 0]))
        shares = [share_of(made, step) for step in (Step.SATURATION, Step.SOLARIZE, Step.HUE)]
        np.testing.assert_allclose(shares, [0.75, 0.25, 0], atol=FREQUENCY)
        even = work(T.RandomChoice([T.Grayscale(), T.Solarize(0.5)]))
        assert share_of(even, Step.SOLARIZE) == pytest.approx(0.5, abs=FREQUENCY)

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

    def test_two_choices_are_independent(self) -> None:
        choice = T.RandomChoice([T.Grayscale(), T.Solarize(0.5)])
        made = work(choice, choice).steps
        assert np.mean(made[:, 0] == made[:, 1]) == pytest.approx(0.5, abs=0.05)


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


def test_blurs() -> None:
    made = work(T.GaussianBlur((5, 9), (0.1, 2.0)), T.GaussianBlur(3, 0.7))
    assert (made.steps == Step.BLUR).all()
    sigma, across, same, down = made.numbers[:, 0, :4].T
    assert is_uniform(sigma, 0.1, 2.0)
    assert (sigma == same).all()
    assert set(across.tolist()) == {2.0}
    assert set(down.tolist()) == {4.0}
    np.testing.assert_allclose(made.numbers[:, 1, :4], [[0.7, 1, 0.7, 1]] * N, rtol=1e-6)


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
        made = work(T.RandomErasing(0.7, scale, ratio), draw=draw, width=width, height=height)
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
        made = work(*ops)
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


def test_rectangles_share_the_area() -> None:
    made = work(T.RandomErasing(0.7, scale=(0.3, 0.3), ratio=(1, 1), count=(1, 3)))
    y0, x0, y1, x1 = np.moveaxis(made.erased, -1, 0).astype(np.float64)
    areas = (y1 - y0) * (x1 - x0)
    counts = (areas > 0).sum(axis=1)
    assert (counts > 0).mean() == pytest.approx(0.7, abs=0.02)
    for count in (1, 2, 3):
        assert (counts == count).mean() == pytest.approx(0.7 / 3, abs=0.02)
        each = areas[counts == count]
        np.testing.assert_allclose(each[each > 0], 0.3 * 64 * 48 / count, rtol=0.08)
    assert made.fills.shape == (N, 3, 3)
    assert noise_amounts([T.RandomErasing(value="random", count=(1, 3))]).shape == (3, 3)


def test_each_rectangle_has_one_random_colour() -> None:
    made = work(T.Normalize.imagenet(), T.RandomErasing(1, value="color", count=2))
    fills = made.fills.reshape(N, -1)
    assert np.abs(fills.mean(axis=0)).max() < 0.05
    np.testing.assert_allclose(fills.std(axis=0), 1, atol=0.04)
    assert np.abs(np.corrcoef(fills.T) - np.eye(6)).max() < 0.05
    assert not made.noise.any()
    fills = work(T.RandomErasing(1, value="color"), T.Normalize((0.5,), (0.25,))).fills
    assert fills.mean() == pytest.approx(-2, abs=0.1)
    assert fills.std() == pytest.approx(4, abs=0.15)


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


WORKS: dict[Op, str] = {
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


def test_the_names_of_draws_never_change() -> None:
    """A hash of the work of every operation. Two more follow: equal names before them change theirs.

    Only the name of `Luma` has no effect: it draws nothing.
    """
    public = {each for each in vars(T).values() if isinstance(each, type) and issubclass(each, ImageOp)}
    assert {type(op) for op in WORKS} >= public
    draw, found = Draw(7, 3, np.arange(16), samples=np.arange(16)), {}
    for op in WORKS:
        ops = [op, T.RandomGrayscale(0.5), T.RandomSolarize(0.5)]
        made = T.Pipeline(ops=tuple(ops)).work(draw, np.full(16, 64.0), np.full(16, 48.0))
        # rounded, because sines and logarithms differ between machines
        columns = [np.rint(getattr(made, name) * 64.0).astype(np.int64).tobytes() for name in WORK_COLUMNS]
        found[op] = hashlib.sha256(b"".join(columns)).hexdigest()[:8]
    assert found == WORKS
