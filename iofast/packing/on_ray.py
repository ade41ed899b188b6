"""`pack(on="ray")`: every part of a run is a task on a Ray cluster whose nodes all see source and target.

The driver makes the plan, submits a task for each missing part, and joins them. Ray runs a task again if its node is
lost. Arguments and results are plain data, so are our errors, which Ray would wrap in its own. docs/cluster.md is for
users.
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
    started = time.monotonic()
    if parts.place.interrupted:
        return parts.finish(pool, progress)
    work = parts.work(None)
    missing, total, workers = parts.missing(work), work.plan.parts or 1, parts.options.ray_cpus or 1
    try:
        with _connected(ray, parts.options.on or RAY):
            task = ray.remote(pack_in_task).options(num_cpus=workers, max_retries=-1, name="iofast pack")
            sources = [absolute(each) for each in parts.sources]
            target, given = os.fspath(parts.place.path), keywords(parts.options)
            running = [task.remote(sources, target, given, f"{number}/{total}", workers) for number in missing]
            progress.begin(total, total - len(missing))
            try:
                while running:
                    done, running = ray.wait(running)
                    for result in ray.get(done):
                        if "error" in result:
                            raise getattr(errors, result["error"])(result["message"])
                    progress.step(len(done), 0, 0)
            finally:
                progress.end()
                for each in running:  # after an error, so that no task holds a lock
                    ray.cancel(each, force=True)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {parts.place.going_on}") from None
    except (ray.exceptions.RayError, ConnectionError) as error:  # the latter from a client of a cluster
        cause = getattr(error, "cause", None) or error  # without the traceback of the task
        words = f"{type(cause).__name__}: {reason_of(cause)}"
        raise WorkerError(f"Ray failed ({words}); {parts.place.going_on}") from error
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
    if is_url(source):
        return source
    folder = os.getcwd()
    return os.path.join(glob.escape(folder) if is_pattern(source) else folder, source)


def keywords(options: PackOptions) -> dict[str, object]:
    """The options of a task."""
    every = {each.name: getattr(options, each.name) for each in fields(options) if each.name not in _OF_DRIVER}
    return {name: value for name, value in every.items() if value != PackOptions.__dataclass_fields__[name].default}


def pack_in_task(source: list[str], target: str, options: dict[str, Any], part: str, workers: int) -> dict[str, str]:
    """Pack one part in a process of Ray. Returns the class and message of an error of ours, or nothing."""
    from iofast.packing.run import pack

    try:
        if not os.path.exists(f"{target}.partial/plan.json"):  # of a lost driver: it must not begin a new run
            raise TargetError(f"{target} has no plan for part {part}: it was finished or removed meanwhile")
        pack(source, target, **options, part=part, workers=workers)
    except (IofastError, OSError) as error:
        kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        return {"error": next(kinds, TargetError.__name__), "message": str(error)}
    return {}
