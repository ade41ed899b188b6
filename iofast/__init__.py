"""iofast: pack a folder of images into one fast file, and train from it as fast as the machine decodes.

This module re-exports lazily: `import iofast` loads neither torch nor the kernel. Each name is imported at its first
use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers and editors; at run time __getattr__ does the same
    from iofast import errors as errors
    from iofast import transforms as transforms
    from iofast.dataset import FastDataset as FastDataset
    from iofast.loader import FastLoader as FastLoader
    from iofast.loader import LoaderOptions as LoaderOptions
    from iofast.meter import watch as watch
    from iofast.opening import open_reader as open_reader
    from iofast.packing import PackOptions as PackOptions
    from iofast.packing import pack as pack
    from iofast.record_writer import open_writer as open_writer
    from iofast.version import __version__ as __version__

_MODULES = ("errors", "transforms")
_NAMES = {
    "pack": "iofast.packing",
    "FastDataset": "iofast.dataset",
    "FastLoader": "iofast.loader",
    "watch": "iofast.meter",
    "open_reader": "iofast.opening",
    "open_writer": "iofast.record_writer",
    "PackOptions": "iofast.packing",
    "LoaderOptions": "iofast.loader",
    "load_ipython_extension": "iofast.run.here",  # `%load_ext iofast`
    "__version__": "iofast.version",
}
__all__ = [
    "pack", "FastDataset", "FastLoader", "watch", "transforms", "open_reader", "open_writer",
    "PackOptions", "LoaderOptions", "errors", "__version__",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _MODULES or name in _NAMES:
        try:
            module = import_module(_NAMES.get(name, f"iofast.{name}"))
        except ImportError:
            if not sys.is_finalizing():
                raise
            raise RuntimeError(f"iofast.{name} cannot be loaded while the interpreter exits: use it earlier") from None
        value: object = module if name in _MODULES else getattr(module, name)
    else:
        from iofast.errors import did_you_mean

        guess = did_you_mean(name, __all__)
        raise AttributeError(f"module 'iofast' has no attribute {name!r}{guess}", obj=sys.modules[__name__])
    globals()[name] = value  # later uses do not call this function
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
