"""The table of docs/format.md 13 is the output of `make interop`: every peer, in the pinned version, all alike."""

import re

import pytest

from tools.interop.__main__ import READERS, WRITERS, Peer, pinned, table
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
