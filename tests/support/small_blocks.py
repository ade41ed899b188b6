"""Blocks of 64 KiB instead of 4 MiB, so that small sets have many."""

from __future__ import annotations

from importlib import import_module

import pytest

BLOCK = 64 << 10
_MODULES = (
    "mirror.copies",
    "mirror.cache",
    "mirror.stored",
    "containers.stored_bytes",
    "prefetch.stored_readahead",
    "staging",
)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in _MODULES:
        monkeypatch.setattr(f"iofast.{module}.BLOCK", BLOCK)


def make_small(size: int = BLOCK) -> None:
    """Blocks of `size` bytes, a multiple of 4096, from now on in this process."""
    for module in _MODULES:
        import_module(f"iofast.{module}").BLOCK = size  # type: ignore[attr-defined]
