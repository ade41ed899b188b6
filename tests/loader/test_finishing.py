"""The work of a batch, by the kernel, and for one image in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pixel_work import EVERYTHING, IMAGENET, JITTER, apply, drawn_work, expected, noise, noise_of, operations, stepped

from iofast import transforms as T
from iofast.errors import OptionError
from iofast.loader.finishing import check_dtype
from iofast.transforms.transform import Op
from iofast.work import Work, no_work


def compare(ops: list[Op], work: Work, images: torch.Tensor) -> None:
    """After the steps the expected values are computed in float64."""
    made = apply(images, ops, work=work)
    levels = stepped(images, work.steps, work.numbers).numpy()
    for row, image in enumerate(levels):
        np.testing.assert_allclose(made[row].numpy(), expected(image, ops, work, row), rtol=0, atol=5e-6)
    assert torch.equal(apply(images, ops, work=work, dtype=torch.float64), made.double())


@given(seed=st.integers(0, 10_000), height=st.integers(1, 12), width=st.integers(1, 12), n=st.integers(1, 4))
def test_all_operations_in_the_order_of_each_sample(seed: int, height: int, width: int, n: int) -> None:
    compare(EVERYTHING, drawn_work(EVERYTHING, n, (height, width), seed), noise(n, height, width, seed))


@given(ops=operations(), seed=st.integers(0, 1 << 20), data=st.data())
def test_any_operations(ops: list[Op], seed: int, data: st.DataObject) -> None:
    n, height, width = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 40)))
    compare(ops, drawn_work(ops, n, (height, width), seed), noise(n, height, width, seed))


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_erasing_before_and_after_normalisation(before: bool) -> None:
    erasing = T.RandomErasing(1, value=0.5)
    ops: list[Op] = [erasing, IMAGENET] if before else [IMAGENET, erasing]
    work = drawn_work(ops, 8, (20, 20))
    made = apply(noise(8, 20, 20), ops, work=work)
    for row, (y0, x0, y1, x1) in enumerate(work.erased[:, 0].tolist()):
        assert y1 > y0
        level = pytest.approx((0.5 - 0.485) / 0.229 if before else 0.5, abs=1e-6)
        assert made[row, 0, y0:y1, x0:x1].unique().tolist() == [level]
    compare(ops, work, noise(8, 20, 20))


class TestNoise:
    @pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
    def test_only_erased_pixels_get_noise(self, before: bool) -> None:
        erasing = T.RandomErasing(1, value="random")
        ops: list[Op] = [erasing, IMAGENET] if before else [IMAGENET, erasing]
        work = drawn_work(ops, 8, (40, 40))
        made = apply(noise(8, 40, 40), ops, work=work)
        boxes = enumerate(work.erased[:, 0].tolist())
        erased = torch.cat([made[row, 0, y0:y1, x0:x1].flatten() for row, (y0, x0, y1, x1) in boxes])
        assert erased.std() == pytest.approx(1 / 0.229 if before else 1, rel=0.1)
        compare(ops, work, noise(8, 40, 40))

    def test_noise_is_normal_and_uncorrelated(self) -> None:
        values = np.stack([noise_of(number, np.arange(4096)) for number in (1, 2, (1 << 31) - 1)]).reshape(9, -1)
        assert abs(values.mean()) < 0.02
        assert values.std() == pytest.approx(1, abs=0.02)
        assert (values**4).mean() == pytest.approx(3 - 1.2 / 8, abs=0.15)
        assert np.abs(values).max() < 4.9
        assert np.abs(np.corrcoef(values) - np.eye(9)).max() < 0.08  # channels and numbers
        assert max(abs(np.corrcoef(each[:-lag], each[lag:])[0, 1]) for each in values for lag in (1, 2, 64)) < 0.08

    def test_noise_does_not_change_between_versions(self) -> None:
        made = noise_of(12345, np.array([[0, 1], [1000, 1 << 20]]))
        assert made.shape == (3, 2, 2)
        np.testing.assert_allclose(made[:, 0, 0], [-0.0362923, 1.2641021, 1.6773340], atol=1e-6)

    def test_each_image_and_erasing_has_its_own_noise(self) -> None:
        work = drawn_work([T.RandomErasing(1, value="random")] * 2, 50, (8, 8))
        assert len(np.unique(work.noise)) == 100
        assert work.noise.min() > 0
        assert work.rows(slice(7, 8)).noise.tolist() == [work.noise[7].tolist()]
        assert not drawn_work([T.RandomErasing(1)], 5, (8, 8)).noise.any()


class TestMixedPixels:
    @pytest.mark.parametrize("mix", [T.MixUp(alpha=0.4, num_classes=9), T.CutMix(num_classes=9)], ids=repr)
    def test_each_image_with_its_partner(self, mix: T.MixUp | T.CutMix) -> None:
        images, ops = noise(7, 12, 10), [*EVERYTHING, mix]
        work = drawn_work(ops, 7, (12, 10), paired=True)
        own = apply(images, EVERYTHING, work=work.paired(np.arange(7)))
        mixed = apply(images, ops, work=work)
        assert torch.equal(mixed[6], own[6])  # without a partner
        for row in range(6):
            share = float(work.share[row])
            wanted = own[row] * share + own[row ^ 1] * (1 - share)
            y0, x0, y1, x1 = work.patch[row].tolist()
            wanted[:, y0:y1, x0:x1] = own[row ^ 1, :, y0:y1, x0:x1]
            torch.testing.assert_close(mixed[row], wanted, rtol=0, atol=1e-6)
        assert not torch.equal(mixed, own)


def test_no_work_changes_nothing() -> None:
    images = noise(4, 6, 6)
    made = apply(images, [JITTER, IMAGENET], work=no_work(4))
    torch.testing.assert_close(made, apply(images, [IMAGENET]), rtol=0, atol=1e-6)


NOTHING = no_work(4)
WRONG: dict[str, Callable[[], object]] = {
    r"RandomErasing.* needs a float dtype": lambda: check_dtype([JITTER, T.RandomErasing()], torch.uint8),
    "dtype must be uint8, float16, bfloat16, float32 or float64": lambda: check_dtype([], torch.int32),
    "partner must pair neighbouring rows": lambda: NOTHING.paired(np.array([2, 1, 0, 3])),
    "neighbouring rows, each with the other": lambda: no_work(3).paired(np.array([1, 2, 1])),
    "steps must be int8": lambda: replace(NOTHING, steps=np.zeros((4, 0))),
}


@pytest.mark.parametrize("reason", WRONG)
def test_arguments_that_do_not_fit_together(reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        WRONG[reason]()
