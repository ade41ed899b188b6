"""Waits for imports of the script, and patches each module right after its own code has run.

Nothing is imported for the script and no thread is started: what a script does not use costs it nothing.
"""

from __future__ import annotations

import os
import sys

from iofast.run import notes
from iofast.run.patches import PATCHES

TYPE_CHECKING = False  # typing's own would import typing: this module is part of the start of every process
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

OFF = "IOFAST_RUN"  # the variable that turns everything off where it is 0


class Finder:
    """Finds what the other finders find; for modules in `PATCHES` it adds a step behind their execution."""

    def __init__(self) -> None:
        self._searching = False

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """Return the module's own spec, or None for modules that stay as they are."""
        if name not in PATCHES or self._searching:
            return None
        self._searching = True
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = None if finder is self or find is None else find(name, path, target)
                if spec is not None:
                    return _with_patch(name, spec)
        finally:
            self._searching = False
        return None


def _with_patch(name: str, spec: ModuleSpec) -> ModuleSpec:
    loader: Any = spec.loader
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        patch(name, module)

    loader.exec_module = exec_module
    return spec


def patch(name: str, module: Any) -> None:
    """Patch a module; one that is not as expected stays as it is, and the report says so."""
    if getattr(module, "__iofast__", False):
        return
    try:
        PATCHES[name](module)
        module.__iofast__ = True
    except Exception as error:
        notes.leave(name, f"it is not as iofast expects: {error!r}")


def install() -> bool:
    """Watch further imports and patch what is imported already; False where IOFAST_RUN=0 forbids it."""
    if os.environ.get(OFF) == "0":
        return False
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
        for name in PATCHES:
            if (module := sys.modules.get(name)) is not None:
                patch(name, module)
    return True
