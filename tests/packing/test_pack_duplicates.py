"""Duplicates are found, and dropped on request, independent of the number of workers and of kills."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packing_runs import interrupt
from PIL import Image

from iofast import open_reader, pack
from iofast.packing import duplicates, pool

NAMES = ("out.lmdb", "out.tar", "out.tfrecord")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 pictures: every tenth equals the one seven before it; two of these lie in the other class."""
    root, rng = tmp_path_factory.mktemp("source"), np.random.default_rng(0)
    made: list[bytes] = []
    for number in range(120):
        path = root / f"c{number // 61}" / f"{number:03d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).save(path)
        if number % 10 == 7:
            path.write_bytes(made[number - 7])
        made.append(path.read_bytes())
    (root / "c1" / "119.png").write_bytes(made[0])
    return root


WANTED = {**{n: n - 7 for n in range(7, 120, 10)}, 119: 0}


def listed(target: Path) -> dict[int, int]:
    lines = target.with_name(target.name + ".duplicates.jsonl").read_text().splitlines()
    return {int(value["key"]): int(value["first"]) for value in map(json.loads, lines)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{}, {"resize": 8, "format": "rgb"}], ids=["keep", "rgb"])
def test_found_and_kept(images: Path, tmp_path: Path, name: str, options: Any) -> None:
    report = pack(images, tmp_path / name, **options)
    assert (report.packed, report.duplicates, report.dropped, report.other_label) == (120, 13, 0, 2)
    assert listed(tmp_path / name) == WANTED
    assert json.loads(report.to_json())["duplicates"] == 13


@pytest.mark.parametrize("name", NAMES)
def test_dropped_for_any_number_of_workers_and_after_a_kill(
    images: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "JOURNAL", 500)
    made = []
    for workers in (1, 3):
        target = tmp_path / str(workers) / name
        target.parent.mkdir()
        report = pack(images, target, drop_duplicates=True, workers=workers)
        assert (report.packed, report.dropped, report.failed) == (107, 13, 0)
        made.append({path.name: path.read_bytes() for path in target.parent.iterdir()})
    (tmp_path / "cut").mkdir()
    for at in (30, 20):
        interrupt(images, tmp_path / "cut" / name, at, drop_duplicates=True)
    report = pack(images, tmp_path / "cut" / name, drop_duplicates=True)
    assert (report.packed, report.dropped, report.failed) == (107, 13, 0)
    assert report.resumed > 30
    made.append({path.name: path.read_bytes() for path in (tmp_path / "cut").iterdir()})
    assert made[0] == made[1] == made[2]
    assert listed(target) == WANTED
    with open_reader(target) as reader:
        assert [int(record.key) for record in reader] == [n for n in range(120) if n not in WANTED]


def test_raw_pixels_of_another_shape_are_another_image(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for width, height in ((8, 2), (4, 4)):
        Image.new("RGB", (width, height)).save(tmp_path / "images" / f"{width}.png")
    assert pack(tmp_path / "images", tmp_path / "out.lmdb", format="rgb", drop_duplicates=True).packed == 2


def test_checksums_that_collide_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Path) -> None:
    monkeypatch.setattr(duplicates, "crc32c", lambda _: 0)
    monkeypatch.setattr("iofast.containers.register.crc32c", lambda _: 0)
    monkeypatch.setattr(duplicates, "_RECENT", 16)
    report = pack(images / "c0", tmp_path / "out.tar", drop_duplicates=True)
    assert report.dropped == len([n for n in WANTED if n < 61])
    assert not os.path.exists(tmp_path / "out.tar")  # only its shards and sidecars


@given(st.lists(st.integers(0, 20), max_size=200), st.integers(1, 9))
def test_marks(keys: list[int], recent: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_RECENT", recent)
        marks = duplicates._Marks()
        for mark, key in enumerate(keys):
            assert sorted(marks.find(key)) == [at for at in range(mark) if keys[at] == key]
            marks.add(key, mark)
