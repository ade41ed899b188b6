"""torchvision v2, for the comparisons with it."""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


def v2() -> Any:
    """torchvision.transforms.v2, None if it is not installed. A torchvision for another build of torch lacks its own
    operators, which no transform here needs; their registrations fail the import and are left out."""
    if importlib.util.find_spec("torchvision") is None:
        return None
    try:
        return importlib.import_module("torchvision.transforms.v2")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")
        return importlib.import_module("torchvision.transforms.v2")
