"""Blocks of 64 KiB instead of 4 MiB, so that small sets have many."""

import contextlib
from collections.abc import Iterator
from importlib import import_module
from unittest.mock import patch

BLOCK = 64 << 10
_MODULES = (
    "mirror.copies",
    "mirror.cache",
    "mirror.stored",
    "containers.stored_bytes",
    "prefetch.stored_readahead",
    "staging",
)


@contextlib.contextmanager
def blocks_of(size: int) -> Iterator[None]:
    """Blocks of `size` bytes, a multiple of 4096, in this process."""
    with contextlib.ExitStack() as stack:
        for module in _MODULES:
            stack.enter_context(patch.object(import_module(f"iofast.{module}"), "BLOCK", size))
        yield
