"""The table of docs/format.md 13 is the output of `make interop`: every peer, in the pinned version, all alike."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tools.environments import Missing
from tools.interop import record_sets
from tools.interop.__main__ import READERS, WRITERS, Peer, compare, pinned, table
from tools.interop.environments import ENVIRONMENTS
from tools.interop.pages import PAGES
from tools.interop.peers import readers, writers

EVERY = (*READERS, *WRITERS)


@pytest.mark.parametrize("peer", EVERY, ids=lambda peer: peer.name)
def test_row(peer: Peer) -> None:
    program, version, does, result = re.split(r" *\| *", table()[peer.name])[1:5]
    assert (program, version, does) == (peer.name, pinned(peer), peer.does)
    assert re.fullmatch(r"all \d+ records alike|not run: .+", result)


def test_every_program_is_a_peer() -> None:
    for peers, module in ((READERS, readers), (WRITERS, writers)):
        assert {peer.program for peer in peers} == {program.__name__ for program in module.PROGRAMS}
    assert set(table()) == {peer.name for peer in EVERY}
    used = {each.environment for each in (*EVERY, *PAGES.values())}
    assert used == set(ENVIRONMENTS)


def test_the_data_of_the_peers(tmp_path: Path) -> None:
    expected = record_sets.build(tmp_path / "x")
    for name in ("train.tar", "train.tfrecord", "train.lmdb"):
        found = record_sets.read(tmp_path / "x" / name)
        assert compare(expected[name], found) == (f"all {record_sets.COUNT} records alike", False)
        assert {name for seen in found for name in seen.others or ()} == {"json"}


ONE, WITH_TEXT = record_sets.Seen("0", "a", 1), record_sets.Seen("0", "a", 1, {"txt": "c"})


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        (ONE, ONE, False),
        (ONE, ONE._replace(key=None), False),
        (ONE, WITH_TEXT, False),
        (ONE, ONE._replace(sha256="b"), True),
        (ONE, ONE._replace(label=2), True),
        (ONE, ONE._replace(key="1"), True),
        (WITH_TEXT, ONE._replace(others={"txt": "d"}), True),
        (WITH_TEXT, ONE._replace(others={}), True),
    ],
)
def test_differences(one: record_sets.Seen, other: record_sets.Seen, differs: bool) -> None:
    assert compare([one], [other])[1] is differs
    assert compare([one], [])[1]


def test_headers_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = replace(ENVIRONMENTS["ffcv"], folder=tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match=r"pkg-config is not there; as root: apt-get install .*opencv-dev"):
        own.python()
    (tmp_path / "pkg-config").write_text('#!/bin/sh\n[ "$2" = libturbojpeg ]\n')
    (tmp_path / "pkg-config").chmod(0o755)
    with pytest.raises(Missing, match=r"^opencv4, a C\+\+ compiler are not there; as root"):
        own.python()
    assert list(tmp_path.iterdir()) == [tmp_path / "pkg-config"]
