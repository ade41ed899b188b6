"""The division of a batch between CPU and device: by share and place, and shares from rates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iofast.errors import OptionError
from iofast.gpu.decode.share import WHOLE, WORTH, Rates, balanced, chosen, explained, on_cpu, speed
from iofast.loader import Split

_rate = st.floats(10, 1e6)
RATES = st.builds(Rates, _rate, _rate, _rate)


@given(share=st.integers(0, WHOLE), batch=st.integers(1, 3000), ranks=st.integers(1, 8))
def test_every_slice_of_a_batch_has_its_share(share: int, batch: int, ranks: int) -> None:
    mask = on_cpu(np.arange(batch), share)
    assert mask.sum() == batch * share // WHOLE  # none for 0, all for WHOLE
    for part in np.array_split(mask, ranks):
        assert abs(int(part.sum()) - len(part) * share / WHOLE) < 1


@given(share=st.integers(0, WHOLE), places=st.lists(st.integers(0, 1 << 40), max_size=20))
def test_nothing_but_share_and_place_counts(share: int, places: list[int]) -> None:
    together = on_cpu(np.array(places, np.int64), share).tolist()
    assert together == [bool(on_cpu(np.array([place]), share)[0]) for place in places]


@given(rates=RATES)
def test_no_share_is_faster_than_the_balanced_one(rates: Rates) -> None:
    best = max(speed(rates, share) for share in range(0, WHOLE + 1, 25))
    assert speed(rates, balanced(rates)) >= 0.97 * best  # shares are rounded to thousandths


def test_both_finish_together() -> None:
    """Preparing a JPEG for the device costs the CPU a tenth of decoding it."""
    rates = Rates(cpu=6000, parts=60_000, device=9000)
    share = balanced(rates)
    cpu, device = share / WHOLE / 6000 + (1 - share / WHOLE) / 60_000, (1 - share / WHOLE) / 9000
    assert cpu == pytest.approx(device, rel=0.01)
    assert speed(rates, share) > 0.85 * (6000 + 9000)
    assert speed(rates, WHOLE) == pytest.approx(6000)
    assert speed(rates, 0) == pytest.approx(9000)


@pytest.mark.parametrize(
    ("rates", "share"),
    [
        (Rates(6000, 60_000, 9000), "both"),
        (Rates(10_000, 12_000, 3000), WHOLE),  # parts cost as much as decoding, and the device is slow
        (Rates(10_000, 100_000, 500), WHOLE),  # 5 % faster does not pay
        (Rates(500, 100_000, 90_000), 0),
        (Rates(10_000, 9000, 20_000), WHOLE),
    ],
)
def test_auto_splits_if_it_pays(rates: Rates, share: Any) -> None:
    found = chosen(rates)
    assert (0 < found < WHOLE) if share == "both" else found == share


@given(rates=RATES)
def test_auto_loses_at_most_the_margin(rates: Rates) -> None:
    best = max(speed(rates, 0), speed(rates, WHOLE), speed(rates, balanced(rates)))
    assert speed(rates, chosen(rates)) * WORTH >= best


def test_explanation() -> None:
    rates = Rates(6000, 60_000, 9000)
    both = explained(rates, balanced(rates))
    assert both.endswith("/s")
    assert "CPU 6,000/s, device 9,000/s, both 1" in both
    assert explained(rates, 0).startswith("on the device: CPU 6,000/s, device 9,000/s, both at most 1")
    assert explained(rates, WHOLE).startswith("on the CPU: CPU 6,000/s")


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [("cpu", value, "0 to 1") for value in (-0.1, 1.1, "half", True, float("nan"))]
    + [("cores", value, "above 0, up to 1") for value in (0, 1.5, None)],
)
def test_shares_of_a_split_are_checked(option: str, value: Any, expected: str) -> None:
    with pytest.raises(OptionError, match=f"{option} of a Split must be a share, {expected}, found "):
        Split(**{option: value})


def test_thousandths() -> None:
    assert (Split(0.4).share, Split(0).share, Split(1).share, Split().share) == (400, 0, WHOLE, None)
