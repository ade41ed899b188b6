"""Fixtures of the tests of transfers and of decoding on a device."""

from __future__ import annotations

import pytest
from device_decoding import Bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, no_thread_is_left: None) -> Bench:
    """Loaders whose device is a model, with Pillow as the decoding library."""
    return Bench(monkeypatch)
