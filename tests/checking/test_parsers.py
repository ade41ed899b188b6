"""A short form of the torture runs `parsers`, `fuzz` and `steps`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tools.torture.drivers import DRIVERS
from tools.torture.drivers.run import Run

STEPS = {"manifest": 40, "index": 15, "pages": 12, "cache": 25, "lmdb": 12, "annotations": 300, "table": 25}
STEPS |= {"images": 60, "regions": 20, "steps": 4, "arrow": 15}


@pytest.mark.parametrize("name", DRIVERS)
def test_damage_is_an_error_and_nothing_else(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = Run(name, 6, tmp_path / name, Counter())
    for number in range(STEPS.get(name, 40)):
        run.step(number)
