"""FastLoader and its options.

options.py   what a loader can be told
fast.py      FastLoader: epochs, ranks, handing over
batches.py   one batch, from positions to tensors
buffers.py   the memory batches lie in
prefetch.py  threads that work ahead, in order
"""

from iofast.loader.fast import FastLoader as FastLoader
from iofast.loader.options import LoaderOptions as LoaderOptions

__all__ = ["FastLoader", "LoaderOptions"]
