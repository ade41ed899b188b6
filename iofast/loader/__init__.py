"""FastLoader and its options.

options.py   what a loader can be told
fast.py      FastLoader: epochs, handing over, its place
plan.py      what all batches have in common: order, ranks, memory
state.py     where a loader is, for an exact resume
batches.py   one batch as a job for threads; what becomes of samples that fail
samples.py   samples in the making: places, pixels, fields, a user's function (mapping.py, in processes.py)
canvas.py    where pixels go: one block, or images of different sizes
several.py   where several views of each image go
targets.py   masks, boxes and keypoints that follow their image
buffers.py   the memory that comes back by itself
assemble.py  from samples to the batch a consumer gets
delivery.py  to the consumer, by way of its device; on_device.py what is done there
resident.py  a whole dataset in the device's memory; caching.py how it gets there
decoding.py  where JPEGs are decoded: split.py (how much of a batch), measure.py, divided.py (a canvas for both)
failures.py  failures: counted, logged, budgeted
prefetch.py  threads that work ahead, in order; times.py what they did, auto.py how many, how far
readahead.py advice to the kernel on coming batches (advice.py)
tally.py     sums over epochs; stats.py what a user sees of them
"""

from iofast.loader.fast import FastLoader as FastLoader
from iofast.loader.options import LoaderOptions as LoaderOptions
from iofast.loader.split import Split as Split

__all__ = ["FastLoader", "LoaderOptions", "Split"]
