"""Packing workers that have started already: a worker spends 0.3 s of CPU time on its imports, and 300 tests pack."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from iofast.packing.pool import WorkerPool

_pools: dict[object, WorkerPool] = {}  # those used last at the end
_MOST = 3
_OF_NO_WORKER = {"PYTEST_CURRENT_TEST", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "IOFAST_DEBUG", "IOFAST_WORK", "COLUMNS"}


@contextmanager
def shared_pool(count: int, *, idle: bool) -> Iterator[WorkerPool]:
    """Stands for `WorkerPool(count)`: its workers run on after a call of `pack` that has left no work to them."""
    if idle:
        with WorkerPool(count, idle=True) as pool:
            yield pool
        return
    inherited = {name: value for name, value in os.environ.items() if name not in _OF_NO_WORKER}
    key = count, os.getcwd(), frozenset(inherited.items())
    pool = _pools.pop(key, None)
    if pool is None:
        pool = WorkerPool(count)
        pool.start()
    try:
        yield pool
    finally:
        if any(worker.jobs for worker in pool._workers):  # an error ended the call
            pool.close()
        else:
            if (replaced := _pools.pop(key, None)) is not None:  # of a call within this one
                replaced.close()
            _pools[key] = pool
            close_pools(_MOST)


def close_pools(left: int = 0) -> None:
    """End all workers but those of the `left` pools used last."""
    while len(_pools) > left:
        _pools.pop(next(iter(_pools))).close()
