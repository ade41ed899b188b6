"""Run by Python at its start, in every process that inherits PYTHONPATH from `iofast run`.

The environment's own sitecustomize, which this one hides, runs as well. iofast is the launcher's, wherever it lies.
"""

import importlib.machinery
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))


class _Launcher:
    """Finds the package of the launcher where the script's environment has none."""

    @staticmethod
    def find_spec(name: str, *_: Any) -> Any:
        path = [os.path.dirname(_PACKAGE)]
        return importlib.machinery.PathFinder.find_spec(name, path) if name == "iofast" else None


def _start() -> None:
    if os.environ.get("IOFAST_RUN") == "0":
        return
    sys.meta_path.insert(0, _Launcher)
    from iofast.run import patches

    patches.install()


def _run_hidden() -> None:
    """Run the sitecustomize that would have been found without this one."""
    own = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if own is not None:
            sys.modules["sitecustomize"] = own
    finally:
        sys.path.insert(0, _HERE)


try:
    _start()
except Exception as error:  # a start that fails must not end the script
    print(f"iofast run: cannot start in this process: {error!r}", file=sys.stderr)  # noqa: T201
_run_hidden()
