"""The benchmark of predictions: its programs, the changes that it really applies, and its page."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.bench_what_if import Beside, Scored, changed, page
from benchmarks.verdicts import loaders, program_runs
from benchmarks.verdicts.programs import SUITES, Program, find
from iofast.monitor.findings import Interference, Prediction


def test_programs_that_are_changed_are_many_and_apart() -> None:
    tune, final = ({replace(one, seed=0) for one in SUITES[f"change-{split}"]} for split in ("tune", "final"))
    assert len(tune | final) == len(tune) + len(final) >= 40
    assert sum(one.loader == "webdataset" for one in tune | final) >= 10, "of other libraries' loaders"
    assert {one.load for one in tune} == {one.load for one in final} == {"sleep", "decode", "store"}


def test_every_change_is_applied() -> None:
    """To the loader that the monitor sees, and to nothing else."""
    program = find("change-tune", "decode-1w-0")

    def after(name: str, change: str = "", of: Program = program) -> dict[str, object]:
        new = changed(of, Prediction(name, change, 1.0, 2.0, ""))
        return {} if new is None else program_runs._changes("change-tune", new)

    assert after("workers", "num_workers=3") == {"workers": 3}
    assert after("pack") == {"load": "packed"}
    assert after("fastloader") == {"loader": "fast", "side": 64, "workers": max(1, len(os.sched_getaffinity(0)))}
    assert after("device", of=find("change-tune", "cpu-decode-1w")) == {"step_s": 0.0125}
    assert after("cores", of=find("change-tune", "decode-1w-one-core")) == {"extra": "", "workers": 2}
    sleeping = find("change-tune", "sleep-1w-0")
    assert (after("storage", of=sleeping), after("page_cache", of=sleeping)) == ({"cost_s": 0.025}, {"cost_s": 0.0})
    assert after("storage") == after("pack", of=sleeping) == {}


def test_packed_pictures_and_fast_loader_give_images_of_the_same_size(tmp_path: Path) -> None:
    program = replace(find("change-tune", "decode-1w-0"), workers=0, batch=4)
    kinds: tuple[dict[str, Any], ...] = ({}, {"load": "packed"}, {"loader": "fast", "side": 64, "workers": 1})
    for changes in kinds:
        images, labels = next(iter(loaders.loader_of(replace(program, **changes), tmp_path)))
        assert sorted(images.shape) == [3, 4, 64, 64]
        assert len(labels) == 4


def test_the_page_of_predictions() -> None:
    """An error is the distance of the band's middle from the measured rate; a wrong direction counts."""
    right = Scored("a", Prediction("workers", "num_workers=2", 1.8, 2.2, ""), 2.0)
    wrong = Scored("b", Prediction("pack", "iofast pack x", 1.2, 1.4, ""), 0.9)
    assert (right.error, right.inside, wrong.inside) == (0.0, True, False)
    text = page("tune", [right, wrong], [Beside("c", Interference(0.1, 0.2), 0.15), Beside("d", None, 0.3)], ["e"])
    assert "2 predictions on 2 programs" in text
    assert "| direction right | 97 % | 50% |" in text
    assert "| c | 10% – 20% | 15% |" in text
    assert "| d | – | 30% |" in text
    assert "Nothing was predicted for 1 programs: e." in text
