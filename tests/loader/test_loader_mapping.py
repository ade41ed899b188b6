"""`map_sample`: what it raises names the sample, and what it returns is a dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iofast.errors import OptionError
from iofast.loader.mapping import Sample, mapped


def faulty(sample: Sample, rng: np.random.Generator) -> Any:
    if sample["do"] == "value":
        raise ValueError(f"no such box: {sample['value']}")
    return None if sample["do"] == "none" else {**sample, "drawn": rng.random()}


def call(sample: Sample, seed: tuple[int, int, int, int] = (0, 0, 0, 0)) -> Sample:
    return mapped(faulty, sample, seed, "sample number 1".format)


def test_numbers_depend_on_the_place_in_the_epoch_alone() -> None:
    seeds = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    drawn = [call({"do": "nothing"}, seed)["drawn"] for seed in seeds]
    assert len(set(drawn)) == 5
    assert [call({"do": "nothing"}, seed)["drawn"] for seed in seeds] == drawn


def test_errors_say_which_sample() -> None:
    with pytest.raises(ValueError, match=r"^no such box: 7") as caught:
        call({"do": "value", "value": 7})
    assert caught.value.__notes__ == ["in map_sample: sample number 1"]
    with pytest.raises(OptionError, match="must return a dictionary, found NoneType") as wrong:
        call({"do": "none"})
    assert wrong.value.__notes__ == ["in map_sample: sample number 1"]
