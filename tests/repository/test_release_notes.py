"""The text of a release is the changelog's part of its version."""

from __future__ import annotations

import pytest

from tools.release_notes import CHANGELOG, notes

TEXT = "# Changelog\n\n## [Unreleased]\n\nnext\n\n## [1.2.0]\n\n### Added\n\n- one\n\n## [1.1.0]\n\n- old\n"


def test_the_part_of_a_version() -> None:
    assert notes(TEXT, "1.2.0") == "### Added\n\n- one\n"
    assert notes(TEXT, "1.1.0") == "- old\n"
    assert notes(CHANGELOG.read_text(), "Unreleased")


def test_no_such_version() -> None:
    with pytest.raises(ValueError, match=r"expected a heading `## \[2\]` in CHANGELOG.md, found none"):
        notes(TEXT, "2")
