"""Run by Python at its start, in every process that inherits PYTHONPATH from `iofast run`.

The environment's own sitecustomize, which this one hides, runs as well. iofast is the launcher's, wherever it lies.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))


class _Launcher:
    """Finds the package of the launcher where the script's environment has none."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        del path, target
        if name != "iofast":
            return None
        start = os.path.join(_PACKAGE, "__init__.py")
        return importlib.util.spec_from_file_location(name, start, submodule_search_locations=[_PACKAGE])


def _start() -> None:
    if os.environ.get("IOFAST_RUN") == "0":
        return
    sys.meta_path.insert(0, _Launcher)
    from iofast.run import imports, notes

    if imports.install():
        notes.start()


def _run_hidden() -> None:
    """Run the sitecustomize that would have been found without this one."""
    paths = [path for path in sys.path if os.path.abspath(path) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


with contextlib.suppress(Exception):  # a start that fails must not end the script
    _start()
_run_hidden()
