"""The table of docs/format.md 13 is what `make interop` ran: every peer, in the pinned version, all alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from iofast.containers.sidecars import NAMES
from tools.interop import data, environments
from tools.interop.__main__ import READERS, WRITERS, Peer, compare, pinned, table
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
    assert {peer.environment for peer in EVERY} == set(environments.REQUIREMENTS)


def test_the_data_that_peers_get(tmp_path: Path) -> None:
    expected = data.build(tmp_path / "x")
    for name in ("train.tar", "train.tfrecord", "train.lmdb"):
        found = data.read(tmp_path / "x" / name)
        assert compare(expected[name], found) == (f"all {data.COUNT} records alike", False)
        assert {name for seen in found for name in seen.others or ()} == {"json"}
    assert len(list((tmp_path / "x").glob("train-*.idx"))) > 6
    assert NAMES == ("dali", "wids", "timm")


def test_what_differs_is_noticed() -> None:
    one, other = data.Seen("0", "a", 1), data.Seen("0", "b", 1)
    assert compare([one], [one]) == ("all 1 records alike", False)
    assert compare([one], [one._replace(key=None)])[1] is False
    assert compare([one], [other])[1]
    assert compare([one], [one._replace(label=2)])[1]
    assert compare([one], [one._replace(key="1")])[1]
    assert compare([one], [])[1]
    assert compare([one], [one._replace(others={"txt": "c"})])[1] is False
    assert compare([one._replace(others={"txt": "c"})], [one._replace(others={"txt": "d"})])[1]
    assert compare([one._replace(others={"txt": "c"})], [one._replace(others={})])[1]


def test_headers_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(environments.Missing, match=r"pkg-config is not there; as root: apt-get install .*opencv-dev"):
        environments.python("ffcv")
    (tmp_path / "pkg-config").write_text('#!/bin/sh\n[ "$2" = libturbojpeg ]\n')
    (tmp_path / "pkg-config").chmod(0o755)
    with pytest.raises(environments.Missing, match=r"^opencv4, a C\+\+ compiler are not there; as root"):
        environments.python("ffcv")
    assert list(tmp_path.iterdir()) == [tmp_path / "pkg-config"]
