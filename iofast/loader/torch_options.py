"""Options of torch's DataLoader that FastLoader does not have: what takes their place, for messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches

from iofast.errors import OptionError
from iofast.loader.options import LoaderOptions

_THREADS = "leave it out, because workers are threads of this process"
_PINNED = "leave it out, because with device='cuda' batches are copied from page-locked memory and arrive on the device"

_HINTS = {
    "batch_sampler": "give its sampler as order=, and batch_size=; order.Buckets makes batches of images of like shape",
    "collate_fn": "give collate={field: function} for the values of a field, or map_batch= for the finished batch",
    "generator": "give seed=, which order and augmentation are drawn from",
    "in_order": "leave it out, because batches always come in order",
    "multiprocessing_context": f"{_THREADS}; map_processes= starts processes for map_sample",
    "num_replicas": "give world_size=, or leave it out, because the ranks of torch.distributed are found",
    "num_threads": "give num_workers=",
    "persistent_workers": f"{_THREADS}, which start at once",
    "pin_memory": _PINNED,
    "pin_memory_device": _PINNED,
    "prefetch_factor": "give prefetch=, the batches that all workers together make ahead",
    "sampler": "give it as order=, which takes any sampler of single indices",
    "timeout": f"{_THREADS}; what one of them raises arrives with its batch",
    "worker_init_fn": f"{_THREADS}; map_sample gets a generator that is seeded for each sample",
}


def refuse_unknown(options: Mapping[str, object]) -> None:
    """Raise `OptionError` that says what to do about the first of `options`, none of which FastLoader has."""
    for name in options:
        near = get_close_matches(name, [each.name for each in fields(LoaderOptions)], 1)
        advice = _HINTS.get(name) or (f"did you mean {near[0]}=?" if near else "LoaderOptions lists those there are")
        raise OptionError(f"{name} is not an option of FastLoader: {advice}")
