"""`iofast info`: histograms and the table of shards."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from container_sets import COUNT, build
from hypothesis import given
from hypothesis import strategies as st

from iofast.cli import main
from iofast.commands.histograms import bars, histogram
from iofast.opening import open_writer


@given(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=200))
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    bins = histogram(np.array(values))
    assert sum(count for *_, count in bins) == len(values)
    assert (bins[0][0], bins[-1][1]) == (min(values), max(values))
    assert all(one[1] == other[0] for one, other in pairwise(bins))
    for low, high, count in bins[:-1]:
        assert count == sum(low <= value < high for value in values)


def test_bars_fit_a_terminal() -> None:
    bins = [[1.0, 9_999_999.0, 9_999_999_999.0], [1e6, 1e7, 0], [1e7, 1e8, 1]]
    lines = bars(bins, lambda edge: f"{edge:,.0f}")
    assert max(map(len, lines)) <= 80
    assert [line.count("█") for line in lines] == [32, 0, 0]
    assert "▏" in lines[2]  # what is there is seen
    assert histogram(np.zeros(0)) == []


@pytest.mark.parametrize("suffix", [".lmdb", ".tar", ".tfrecord"])
def test_command(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build(tmp_path / f"set{suffix}")
    assert main(["info", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert sum(count for *_, count in facts["images"]["histograms"]["bytes"]) == COUNT
    assert (facts["images"]["field"], facts["images"]["fields"]) == ("jpg", ["jpg", "png"])
    assert facts["images"]["histograms"]["shorter_side"] == [[40.0, 40.0, COUNT]]
    shards = sorted(each.name for each in tmp_path.iterdir() if each.suffix == suffix and each != path)
    assert sorted(shard["name"] for shard in facts["shards"]) == shards
    assert sum(shard["count"] for shard in facts["shards"]) == (COUNT if shards else 0)
    files = [tmp_path / name for name in shards] or [path]
    assert facts["bytes"] == sum(each.stat().st_size for each in files)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["info", str(path)]) == 0
    out = capsys.readouterr().out
    assert "bytes of an image" in out
    assert "images       jpg png, " in out
    assert all(name in out for name in shards)
    assert max(map(len, out.splitlines())) <= 80
    monkeypatch.delenv("COLUMNS")
    assert main(["info", str(path)]) == 0  # into no terminal
    assert f"fingerprint  {facts['fingerprint']}" in capsys.readouterr().out.splitlines()


def test_classes_of_records_without_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_writer(tmp_path / "set.lmdb", classes=["cat", "dog"]) as writer:
        for label in (1, 1, 0, None):
            writer.write({"txt": "a caption"} | ({} if label is None else {"cls": label}))
    assert main(["info", str(tmp_path / "set.lmdb"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["images"], facts["classes"], facts["unlabelled"]) == (None, {"cat": 1, "dog": 2}, 1)


def test_classes_stand_in_the_order_of_their_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_writer(tmp_path / "set.lmdb", classes=["dog", "ant", "cat"]) as writer:
        for label in (2, 0, 0):
            writer.write({"txt": "a caption", "cls": label})
    assert main(["info", str(tmp_path / "set.lmdb"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts["classes"].items()) == [("dog", 2), ("ant", 0), ("cat", 1)]
    assert facts["labels"] == {"0": 2, "2": 1}
    assert main(["info", str(tmp_path / "set.lmdb")]) == 0
    assert "3, in lexicographic order, those added later last" in " ".join(capsys.readouterr().out.split())


def test_labels_without_names_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_writer(tmp_path / "set.lmdb") as writer:
        for label in (7, 7, 3):
            writer.write({"txt": "a caption", "cls": label})
    assert main(["info", str(tmp_path / "set.lmdb")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["labels", "2,", "without", "names"] in lines
    assert ["3", "1"] in lines
    assert ["7", "2"] in lines
