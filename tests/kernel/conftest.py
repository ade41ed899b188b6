"""The kernel that a test with the argument `kernel` runs on: the native one and its twin in turn."""

from __future__ import annotations

from types import ModuleType
from typing import cast

import pytest
from kernel_images import BACKENDS


@pytest.fixture(scope="module", params=BACKENDS)
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    """`native` or `twin`, which have the same functions."""
    return cast(ModuleType, request.param)
