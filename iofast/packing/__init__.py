"""Packing: a folder of images (or a manifest) in, one container out.

Lazy, because each worker process imports this package and needs none of what the parent does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what a type checker and an editor see; at run time __getattr__ does the same
    from iofast.packing.options import PackOptions as PackOptions
    from iofast.packing.report import Estimate as Estimate
    from iofast.packing.report import PackReport as PackReport
    from iofast.packing.run import pack as pack
    from iofast.packing.run import pack_part as pack_part

_HOMES = {"pack": "run", "pack_part": "run", "PackOptions": "options", "PackReport": "report", "Estimate": "report"}
__all__ = ["pack", "pack_part", "PackOptions", "PackReport", "Estimate"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'iofast.packing' has no attribute {name!r}")
    value: object = getattr(import_module(f"iofast.packing.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
