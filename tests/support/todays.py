"""Matrices of kills: one case a day in `make test`, all of them with --slow, as torture runs them."""

from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest


def todays(cases: Sequence[Any]) -> list[Any]:
    """The cases as parameters: all but that of this day are slow."""
    now = date.today().toordinal() % len(cases)
    return [each if number == now else pytest.param(each, marks=pytest.mark.slow) for number, each in enumerate(cases)]
