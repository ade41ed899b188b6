"""A user's function for each sample, in the thread that made the sample or in processes of its own.

A function that holds the GIL stops every other thread; processes do not, at the price of sending samples to and fro
(through pipes: nothing goes to shared memory, and nothing is left behind by a process that is killed).
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import torch

from iofast.choices import generator
from iofast.errors import OptionError, WorkerError

Sample = dict[str, Any]
SampleFunction = Callable[[Sample, np.random.Generator], Sample]
Seeds = Sequence[tuple[int, int, int, int]]  # (seed, epoch, position, attempt) of each sample

_function: SampleFunction  # of a worker process


class Mapper:
    """Calls `function(sample, rng)` for samples; `rng` depends on the sample's place in the epoch alone.

    With `processes` it is called in so many processes, which are started (spawned) when they are first needed: the
    function must be picklable then, and a script needs its `if __name__ == "__main__"`.
    """

    def __init__(self, function: SampleFunction, processes: int) -> None:
        self._function, self._processes = function, processes
        self._pools: dict[int, ProcessPoolExecutor] = {}  # by process id: a pool does not survive a fork
        self._lock = threading.Lock()

    def map(self, samples: list[Sample], seeds: Seeds) -> list[Sample]:
        """What the function makes of each sample. Raises what it raises, `WorkerError` where a process died."""
        if not self._processes:
            return _apply(self._function, samples, seeds)
        try:
            plain = [_without_tensors(sample) for sample in samples]
            made = self._pool().submit(_in_process, plain, seeds).result()
        except BrokenProcessPool:
            raise WorkerError("a process that ran map_sample was killed or crashed before its work was done") from None
        return [_with_tensors(sample) for sample in made]

    def _pool(self) -> ProcessPoolExecutor:
        with self._lock:
            pool = self._pools.get(os.getpid())
            if pool is None:
                spawn = multiprocessing.get_context("spawn")
                pool = ProcessPoolExecutor(self._processes, spawn, _set_function, (self._function,))
                self._pools[os.getpid()] = pool
                weakref.finalize(self, pool.shutdown, wait=False, cancel_futures=True)
            return pool


def _apply(function: SampleFunction, samples: list[Sample], seeds: Seeds) -> list[Sample]:
    made = [function(sample, generator(*seed)) for sample, seed in zip(samples, seeds, strict=True)]
    for sample in made:
        if not isinstance(sample, dict):
            raise OptionError(f"map_sample must return a dictionary, found {type(sample).__name__}")
    return made


def _set_function(function: SampleFunction) -> None:
    global _function
    _function = function
    torch.set_num_threads(1)


def _in_process(samples: list[Sample], seeds: Seeds) -> list[Sample]:
    made = _apply(_function, [_with_tensors(sample) for sample in samples], seeds)
    return [_without_tensors(sample) for sample in made]


class _Tensor:
    """A tensor on its way, as an array: torch's own pickling puts it into shared memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.array = tensor.detach().numpy()


def _without_tensors(sample: Sample) -> Sample:
    return {name: _Tensor(value) if isinstance(value, torch.Tensor) else value for name, value in sample.items()}


def _with_tensors(sample: Sample) -> Sample:
    return {
        name: torch.from_numpy(value.array) if isinstance(value, _Tensor) else value for name, value in sample.items()
    }
