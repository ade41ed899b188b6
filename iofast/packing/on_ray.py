"""`pack(on="ray")`: every part of a run is a task on a Ray cluster whose nodes all see source and target.

The driver makes the plan, submits a task for each missing part, and joins them. Ray runs a task again if its node or
process is lost. Arguments and results are plain data, so are our errors, which Ray would wrap in its own.
"""

from __future__ import annotations

import contextlib
import glob
import os
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from iofast import errors
from iofast.containers.shards import is_pattern
from iofast.errors import IofastError, OptionError, TargetError, WorkerError, reason_of
from iofast.machine import cores
from iofast.packing.options import RAY, PackOptions
from iofast.packing.parts import PackParts
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.report import PackReport
from iofast.remote.urls import is_url

_OF_DRIVER = ("on", "ray_cpus", "part", "finish", "finish_when_complete")  # options that tasks do not get


def pack_on_ray(parts: PackParts, pool: WorkerPool, progress: PackProgress) -> PackReport:
    """Pack all missing parts on the cluster that the options name, and join them.

    Raises errors of tasks as they are in a run without Ray, and `WorkerError` if Ray fails.
    """
    try:
        import ray
    except ImportError:
        raise OptionError("on=ray needs Ray, which is not installed: pip install 'iofast[ray]'") from None
    started, options, going_on = time.monotonic(), parts.options, parts.place.going_on
    if parts.place.interrupted:
        return parts.finish(pool, progress)
    work = parts.work(None)
    missing, total, workers = parts.missing(work), work.plan.parts or 1, options.ray_cpus or 1
    given = ([absolute(each) for each in parts.sources], os.fspath(parts.place.path), keywords(options))
    try:
        with _connected(ray, options.on or RAY):
            task = ray.remote(pack_in_task).options(num_cpus=workers, max_retries=-1, name="iofast pack")
            running = [task.remote(*given, f"{number}/{total}", workers) for number in missing]
            progress.begin(total, total - len(missing))
            try:
                while running:
                    done, running = ray.wait(running)
                    for error, message in filter(None, ray.get(done)):
                        raise getattr(errors, error)(message)
                    progress.step(len(done), 0, 0)
            finally:
                progress.end()
                for each in running:  # after an error, so that no task holds a lock
                    ray.cancel(each, force=True)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {going_on}") from None
    except (ray.exceptions.RayError, ConnectionError) as error:  # the latter from a client of a cluster
        cause = getattr(error, "cause", None) or error  # without the traceback of the task
        raise WorkerError(f"Ray failed ({type(cause).__name__}: {reason_of(cause)}); {going_on}") from error
    return replace(parts.finish(pool, progress), seconds=time.monotonic() - started)


@contextlib.contextmanager
def _connected(ray: Any, on: str) -> Iterator[None]:
    """Connect: to the cluster that the program uses already, to `on`, or to RAY_ADDRESS; else start Ray here."""
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS", "local") if on == RAY else on
    own = {"num_cpus": cores(), "include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", **own)
    except (OSError, RuntimeError, ValueError, ImportError) as error:  # such as another version of Ray or Python there
        raise WorkerError(f"Ray cannot be used at {address}: {reason_of(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


def absolute(source: str) -> str:
    """`source` for a process with another working directory. Special characters of a pattern keep their meaning."""
    folder = glob.escape(os.getcwd()) if is_pattern(source) else os.getcwd()
    return source if is_url(source) else os.path.join(folder, source)


def keywords(options: PackOptions) -> dict[str, object]:
    """The options of a task: those that are not as by default."""
    every = {each.name: (getattr(options, each.name), each.default) for each in fields(options)}
    return {name: now for name, (now, default) in every.items() if now != default and name not in _OF_DRIVER}


def pack_in_task(
    source: list[str], target: str, options: dict[str, Any], part: str, workers: int
) -> tuple[str, str] | None:
    """Pack one part in a process of Ray. Returns the class and the message of an error of ours."""
    from iofast.packing.run import pack

    try:
        if not os.path.exists(f"{target}.partial/plan.json"):  # of a lost driver: it must not begin a new run
            raise TargetError(f"{target} has no plan for part {part}: it was finished or removed meanwhile")
        pack(source, target, **options, part=part, workers=workers)
    except (IofastError, OSError) as error:
        kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        return next(kinds, TargetError.__name__), str(error)
    return None
