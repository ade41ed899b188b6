"""`iofast info`: histograms, classes and the table of shards."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import CommandLine
from container_sets import COUNT
from hypothesis import given
from hypothesis import strategies as st

from iofast import open_writer
from iofast.commands.histograms import bars, histogram


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
    assert "▏" in lines[2]  # a count of 1 is visible
    assert histogram(np.zeros(0)) == []


def test_command(container: Path, iofast: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = iofast("info", container, "--json").facts
    assert sum(count for *_, count in facts["images"]["histograms"]["bytes"]) == COUNT
    assert (facts["images"]["field"], facts["images"]["fields"]) == ("jpg", ["jpg", "png"])
    assert facts["images"]["histograms"]["shorter_side"] == [[40.0, 40.0, COUNT]]
    files = [each for each in container.parent.iterdir() if each.suffix == container.suffix and each != container]
    assert {shard["name"] for shard in facts["shards"]} == {each.name for each in files}
    assert sum(shard["count"] for shard in facts["shards"]) == (COUNT if files else 0)
    assert facts["bytes"] == sum(each.stat().st_size for each in files or [container])
    monkeypatch.setenv("COLUMNS", "80")
    text = iofast("info", container).out
    assert all(
        words in text for words in ("bytes of an image", "images       jpg png, ", *(each.name for each in files))
    )
    assert max(map(len, text.splitlines())) <= 80
    monkeypatch.delenv("COLUMNS")
    assert f"fingerprint  {facts['fingerprint']}" in iofast("info", container).out.splitlines()  # nothing wraps


@pytest.mark.parametrize(
    ("classes", "labels", "facts", "line"),
    [
        (["cat", "dog"], [1, 1, 0, None], {"images": None, "classes": {"cat": 1, "dog": 2}, "unlabelled": 1}, "cat 1"),
        (
            ["dog", "ant", "cat"],
            [2, 0, 0],
            {"classes": {"dog": 2, "ant": 0, "cat": 1}, "labels": {"0": 2, "2": 1}},
            "3, in lexicographic order, those added later last",
        ),
        (None, [7, 7, 3], {"classes": None, "labels": {"3": 1, "7": 2}}, "labels 2, without names"),
        (None, [7, 7, 3], {}, "3 1 7 2"),
    ],
)
def test_classes(
    tmp_path: Path,
    iofast: CommandLine,
    classes: list[str] | None,
    labels: list[int | None],
    facts: dict[str, Any],
    line: str,
) -> None:
    with open_writer(tmp_path / "set.lmdb", classes=classes) as writer:
        for label in labels:
            writer.write({"txt": "a caption"} | ({} if label is None else {"cls": label}))
    found = iofast("info", tmp_path / "set.lmdb", "--json").facts
    assert {name: found[name] for name in facts} == facts
    if classes:
        assert list(found["classes"]) == classes  # in the order of their numbers
    assert line in " ".join(iofast("info", tmp_path / "set.lmdb").out.split())
