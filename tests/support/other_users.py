"""Files of another user: root changes the owner, other users see a patched one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

OTHER = 12345


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `path` (a file, folder or link) another user's, and return it."""
    if os.geteuid() == 0:
        os.chown(path, OTHER, -1, follow_symlinks=False)
        return path
    given = os.lstat(path)
    for name in ("stat", "lstat", "fstat"):
        monkeypatch.setattr(os, name, _showing(given, getattr(os, name)))
    return path


def _showing(given: os.stat_result, real: Any) -> Any:
    def status(*arguments: Any, **more: Any) -> os.stat_result:
        found: os.stat_result = real(*arguments, **more)
        if (found.st_ino, found.st_dev) != (given.st_ino, given.st_dev):
            return found
        return os.stat_result((*found[:4], OTHER, *found[5:]))

    return status
