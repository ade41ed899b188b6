"""A short form of the torture runs `parsers`, `fuzz` and `steps`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tools.torture.drivers import DRIVERS
from tools.torture.drivers.run import Run

STEPS = {"index": 8, "pages": 8, "lmdb": 6, "annotations": 100, "table": 6, "regions": 10, "steps": 1, "arrow": 4}


@pytest.mark.parametrize("name", DRIVERS)
def test_damage_is_an_error_and_nothing_else(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = Run(name, 6, tmp_path / name, Counter())
    for number in range(STEPS.get(name, 20)):
        run.step(number)
