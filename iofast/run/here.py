"""`import iofast.run.here` does in this process, and in its workers, what `iofast run` does from outside."""

from __future__ import annotations

from iofast.run import imports

imports.install()
