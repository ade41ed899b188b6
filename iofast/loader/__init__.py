"""FastLoader and its options.

options.py        the options, and the types of batches
fast.py           FastLoader: epochs, handing over, its place
epochs.py         the order of samples, on this rank, and the sampler that frameworks look for
spec.py           contents of batches; which options exclude each other
resources.py      threads, memory, the path to the device
state.py          the place of a loader, for an exact resume
plan.py           the first step of samples, their places: which, where, boxes, flips
pixels.py         the second, their pixels; decoding.py: on which device
samples.py        the third, their values: fields, map_sample
canvas.py         memory for pixels: one block, or images of different sizes; views.py: several views
target_fields.py  masks, boxes and keypoints that follow their image
assemble.py       from samples to the batch that a consumer gets
batches.py        one batch as a job for threads; failed samples
delivery.py       to the consumer, by way of its device
resident.py       a whole dataset in device memory; filling.py puts it there
finishing.py      from uint8 images to the values of a batch
there.py          images that the device makes
loader_stats.py   sums and failures; trace.py: when each batch was made
"""

import iofast.dataset  # noqa: F401  first: without torch its error says what to install
from iofast.loader.fast import FastLoader as FastLoader
from iofast.loader.options import LoaderOptions as LoaderOptions

__all__ = ["FastLoader", "LoaderOptions"]
