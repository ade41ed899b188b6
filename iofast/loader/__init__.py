"""FastLoader and its options.

options.py        what a loader can be told; checks.py which options exclude each other
fast.py           FastLoader: epochs, handing over, its place
epochs.py         which samples come when, on which rank
spec.py           what batches consist of
resources.py      what they are made with: threads, memory, the path to the device
state.py          where a loader is, for an exact resume
samples.py        samples in the making: places, pixels, fields, a user's function (mapping.py, in processes.py)
canvas.py         where pixels go: one block, or images of different sizes; singly.py: several views, 16 bits
target_fields.py  masks, boxes and keypoints that follow their image
assemble.py       from samples to the batch a consumer gets
batches.py        one batch as a job for threads; what becomes of samples that fail
delivery.py       to the consumer, by way of its device
resident.py       a whole dataset in the device's memory
loader_stats.py   what a loader has done, and which samples failed
"""

from iofast.gpu.decode import Split as Split
from iofast.loader.fast import FastLoader as FastLoader
from iofast.loader.options import LoaderOptions as LoaderOptions

__all__ = ["FastLoader", "LoaderOptions", "Split"]
