"""Fixtures of the tests of commands."""

from pathlib import Path

import pytest
from command_line import CommandLine
from container_sets import SUFFIXES, build


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def iofast(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Runs a command line: `iofast("info", path).out`."""
    return CommandLine(capsys)


@pytest.fixture(params=SUFFIXES)
def container(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The usual records in a container of each kind."""
    return build(tmp_path / f"set{request.param}")
