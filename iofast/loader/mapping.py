"""`map_sample`, called in the thread that made the sample or in processes of its own.

A function that holds the GIL stops every other thread. Processes do not, but samples are sent to and from them: through
pipes, so that nothing stays in shared memory when a process is killed.
"""

from __future__ import annotations

import inspect
import os
import pickle  # noqa: TID251 (between a process and its own child; nothing is stored)
import random
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.choices import generator
from iofast.errors import OptionError, WorkerError
from iofast.loader.processes import MapPool

Sample = dict[str, Any]
SampleFunction = Callable[[Sample, np.random.Generator], Sample]
Seeds = Sequence[tuple[int, int, int, int]]  # (seed, epoch, position, attempt) of each sample
Names = Callable[[int], str]  # number in the list -> name of the sample in errors

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by item size


class Mapper:
    """Calls `function(sample, rng)`, where `rng` depends only on the sample's place in the epoch.

    `processes` > 0 calls it in that many processes, spawned when they are first needed. Then the function must be
    picklable, and a script needs `if __name__ == "__main__"`. In a process the global generators of `random`, NumPy and
    torch are seeded for each sample, from its place in the epoch.
    """

    def __init__(self, function: SampleFunction, processes: int) -> None:
        self._function, self._processes = function, processes
        self._pools: dict[int, MapPool] = {}  # by process id, as a pool does not survive a fork

    def map(self, samples: list[Sample], seeds: Seeds, names: Names | None = None) -> list[Sample]:
        """The result of each sample. What the function raises gets a note with the sample's name.

        Raises `WorkerError` if two processes died over the samples, or the function's exception cannot be pickled.
        """
        if self._processes:
            return self._in_processes(samples, seeds, names)
        results: list[Sample] = []
        try:
            _apply(self._function, samples, seeds, results)
        except Exception as error:
            _note(error, names, len(results))
            raise
        return results

    def _in_processes(self, samples: list[Sample], seeds: Seeds, names: Names | None) -> list[Sample]:
        request = _dumps((samples, seeds))
        try:
            fault, body = self._pool().ask(request)
        except WorkerError as error:
            if names is not None:
                error.add_note(f"in map_sample: one of {len(samples)} samples, the first is {names(0)}")
            raise
        if fault:
            raise _raised(_Fault(*pickle.loads(fault)), body, names)
        try:
            results: list[Sample] = pickle.loads(body)
        except Exception as error:
            raise WorkerError(f"what map_sample returned cannot be unpickled: {_described(error)}") from error
        return results

    def _pool(self) -> MapPool:
        pool = self._pools.get(os.getpid())
        if pool is None:  # if two threads come here, the first one's counts; the other has started nothing
            pool = self._pools.setdefault(os.getpid(), MapPool(self._processes, _answer, _pickled(self._function)))
        return pool


def check_picklable(function: SampleFunction) -> None:
    """Raise `OptionError` if a new process could not load the function."""
    _pickled(function)


def _pickled(function: SampleFunction) -> bytes:
    try:
        pickled = bytes(_dumps(function))
    except Exception as error:
        raise OptionError(
            "map_processes needs a map_sample that can be pickled: define it with def at the top level of a module, or "
            f"leave map_processes out; found {function!r}: {_described(error)}"
        ) from None
    # a spawned process runs the script again, but not the input of an interpreter or a notebook
    script = getattr(sys.modules["__main__"], "__file__", None)
    if b"__main__" in pickled and (script is None or not Path(script).exists()):
        raise OptionError(
            "map_processes needs a map_sample that a new process can import: move it into a file of its own and import "
            f"it, or leave map_processes out; found {function!r}, which no file defines"
        )
    return pickled


class _Fault(NamedTuple):
    """An error of the function in a process. The exception itself is sent apart, as it may not survive pickling."""

    row: int | None  # None: not in a sample
    what: str
    where: str


def _apply(
    function: SampleFunction,
    samples: list[Sample],
    seeds: Seeds,
    results: list[Sample],
    before_each: Callable[[int, int, int, int], None] | None = None,
) -> None:
    """Append to `results`, so that its length is the number of the sample that raised something."""
    for sample, seed in zip(samples, seeds, strict=True):
        if before_each is not None:
            before_each(*seed)
        result = function(sample, generator(*seed))
        if not isinstance(result, dict):
            raise OptionError(f"map_sample must return a dictionary, found {type(result).__name__}")
        results.append(result)


def _answer(function: bytes, request: bytes) -> tuple[bytes | memoryview, bytes | memoryview]:
    """In a process: the `_Fault` (b"" without one), and the results or the exception, all pickled."""
    results: list[Sample] | None = None
    try:
        call = _loaded(function)
        samples, seeds = pickle.loads(request)
        results = []
        _apply(call, samples, seeds, results, seed_globally)
        return b"", _sendable(results)
    except BaseException as error:
        row = None if results is None else len(results)
        fault = _dumps(tuple(_Fault(row, _described(error), traceback.format_exc())))
        try:
            return fault, _dumps(error)
        except Exception:
            return fault, b""


def seed_globally(seed: int, epoch: int, position: int, attempt: int) -> None:
    """Seed the generators of the whole process, which must do one thing at a time."""
    words = generator(seed, epoch, position, attempt, "global").integers(1 << 32, size=10, dtype=np.uint32)
    np.random.seed(words[:4])
    random.seed(words[4:8].tobytes())
    torch.default_generator.manual_seed(int(words[8:].view(np.int64)[0]))  # the CPU's alone


def parameters(function: Callable[..., Any], names: Sequence[str]) -> list[str]:
    """Those of `names` that are parameters of a user's function, after its first one and not bound by `partial`."""
    try:
        _, *others = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature, or without a parameter
        return []
    named = {each.name for each in others if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    bound = function.keywords if isinstance(function, partial) else {}
    return [name for name in names if name in named and name not in bound]


@lru_cache(maxsize=1)
def _loaded(function: bytes) -> SampleFunction:
    torch.set_num_threads(1)
    try:
        loaded: SampleFunction = pickle.loads(function)
    except Exception as error:
        raise WorkerError(f"map_sample cannot be loaded in a new process: {_described(error)}") from error
    return loaded


def _sendable(results: list[Sample]) -> memoryview:
    """Pickle `results`. If that fails, cut them before the result that is the cause."""
    try:
        return _dumps(results)
    except Exception:
        for row, sample in enumerate(results):
            try:
                _dumps(sample)
            except Exception as error:
                del results[row:]
                what = f"with map_processes, map_sample must return what can be pickled: {_described(error)}"
                raise OptionError(what) from None
        raise


def _raised(fault: _Fault, body: bytes, names: Names | None) -> BaseException:
    """What the function raised, or a `WorkerError` that describes it."""
    error: BaseException = WorkerError(f"map_sample raised {fault.what}")
    with suppress(Exception):  # its constructor may reject the pickled arguments
        sent = pickle.loads(body)
        error = sent if isinstance(sent, BaseException) else error
    _note(error, names, fault.row)
    error.add_note(f"in a process of map_sample:\n{fault.where.rstrip()}")
    return error


def _note(error: BaseException, names: Names | None, row: int | None) -> None:
    if names is not None and row is not None:
        error.add_note(f"in map_sample: {names(row)}")


def _described(error: BaseException) -> str:
    """An exception in one line, also if its `str()` fails."""
    return " ".join("".join(traceback.format_exception_only(error)).split())


class _Pickler(pickle.Pickler):
    """Pickles the bytes of tensors, wherever in a sample they are.

    torch's own pickling would send the whole batch with a row of it, multiprocessing's would use shared memory.
    """

    def reducer_override(self, value: object) -> Any:
        if type(value) is not torch.Tensor or value.layout != torch.strided or value.device.type != "cpu":
            return NotImplemented
        if value.is_quantized or value.is_nested:
            return NotImplemented
        plain = value.detach().resolve_conj().resolve_neg()
        try:
            return _tensor, (plain.numpy(), None)
        except TypeError:  # bfloat16, float8 and other types that NumPy lacks
            return _tensor, (plain.view(_INTEGERS[plain.itemsize]).numpy(), plain.dtype)


def _tensor(array: NDArray[Any], dtype: torch.dtype | None) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor if dtype is None else tensor.view(dtype)


def _dumps(value: object) -> memoryview:
    buffer = BytesIO()
    _Pickler(buffer, protocol=5).dump(value)
    return buffer.getbuffer()
