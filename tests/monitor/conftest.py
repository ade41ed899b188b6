"""What the tests of the monitor share."""

from pathlib import Path

import pytest
from proc_folder import ProcFolder


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcFolder:
    """An empty folder that the monitor reads in place of /proc."""
    monkeypatch.setattr("iofast.monitor.probe.states.PROC", tmp_path / "proc")
    return ProcFolder(tmp_path / "proc")
