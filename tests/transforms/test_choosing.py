"""RandomChoice, RandomApply, RandomOrder."""

from __future__ import annotations

import numpy as np
import pytest
from transform_draws import FREQUENCY, N, equally_likely, share_of, work

from iofast import transforms as T
from iofast.work import Step


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
