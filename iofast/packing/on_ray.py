"""`pack(on="ray")`: each missing part of a run is a task of Ray, which repeats those of lost nodes and processes."""

import glob
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from iofast.containers.publish import PLAN, Target
from iofast.containers.shards import is_pattern
from iofast.errors import IofastError, OptionError, TargetError, WorkerError, reason_of
from iofast.machine import cores
from iofast.packing.options import RAY, PackOptions
from iofast.packing.pack_run import images_of
from iofast.packing.part import PackPart
from iofast.packing.parts import PackParts, missing_parts
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.report import PackReport
from iofast.remote.urls import is_url

_Pack = Callable[..., PackReport]
_STORE = 100 << 20  # bytes of a local Ray's object store, which holds only reports; Ray's default is 30 % of memory


def pack_on_ray(parts: PackParts, pack: _Pack) -> PackReport:
    """Pack all missing parts, each by `pack` in a task, and join them. Raises errors of tasks as without Ray."""
    try:
        import ray
    except ImportError:
        raise OptionError("on=ray needs Ray, which is not installed: pip install 'iofast[ray]'") from None
    started, resumed, processors, progress = time.monotonic(), 0, 0, parts.progress
    if not parts.target.interrupted:
        plan, going_on = parts.shared(None).plan, parts.target.going_on
        parts.pool.close()  # of the plan's sample: tasks have workers of their own
        missing = [PackPart(number, plan.parts or 1) for number in missing_parts(parts.target, plan)]
        resumed = plan.images - sum(images_of(part.of(plan.sections())) for part in missing)
        progress.begin(plan.images, resumed)
        try:
            processors = _pack_all(ray, parts, pack, missing) if missing else 0
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted; {going_on}") from None
        except (ray.exceptions.RayError, ConnectionError) as error:  # the latter from a client of a cluster
            cause = getattr(error, "cause", None) or error  # without the traceback of the task
            if isinstance(cause, IofastError | OSError) and cause is not error:
                raise (cause if isinstance(cause, IofastError) else TargetError(str(cause))) from None
            raise WorkerError(f"Ray failed ({type(cause).__name__}: {reason_of(cause)}); {going_on}") from error
        finally:
            progress.end()
    report = parts.finish()
    return replace(report, seconds=time.monotonic() - started, workers=processors or report.workers, resumed=resumed)


def _pack_all(ray: Any, parts: PackParts, pack: _Pack, missing: list[PackPart]) -> int:
    """Pack the parts. Returns the number of processors of the cluster."""
    workers, failed = parts.options.ray_cpus or 1, 0
    folder, target = os.getcwd(), os.path.abspath(parts.target.path)  # tasks have another working directory
    sources = [
        path if is_url(path) else os.path.join(glob.escape(folder) if is_pattern(path) else folder, path)
        for path in parts.sources
    ]
    options = replace(parts.options, on=None, ray_cpus=None)
    connected, left = not ray.is_initialized(), list[Any]()
    if connected:
        _connect(ray, str(parts.options.on))
    try:
        task = ray.remote(pack_in_task).options(num_cpus=workers, max_retries=-1, retry_exceptions=False)
        left = [task.remote(pack, sources, target, replace(options, part=f"{i}/{n}"), workers) for i, n in missing]
        while left:
            (done,), left = ray.wait(left)
            report = ray.get(done)
            parts.progress.step(report.images, report.bytes_in, failed := failed + report.failed)
        return int(ray.cluster_resources().get("CPU", 0))
    finally:
        for each in left:  # after an error; they would hold locks
            ray.cancel(each, force=True)
        if connected:
            ray.shutdown()


def _connect(ray: Any, on: str) -> None:
    """Connect to the cluster of the option or of RAY_ADDRESS; without any, start Ray on this machine."""
    address = os.environ.get("RAY_ADDRESS", "local") if on == RAY else on
    own = {"num_cpus": cores(), "object_store_memory": _STORE, "include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", **own)
    except (OSError, RuntimeError, ValueError, ImportError) as error:  # such as another version of Ray or Python there
        raise WorkerError(f"Ray cannot be used at {address}: {reason_of(error)}") from error


def pack_in_task(pack: _Pack, sources: list[str], target: str, options: PackOptions, workers: int) -> PackReport:
    """Pack one part in a process of Ray."""
    if not (Target(target).partial / PLAN).exists():  # a task of a lost driver: it must not begin a new run
        raise TargetError(f"{target} has no plan for part {options.part}: it was finished or removed meanwhile")
    with WorkerPool(workers) as pool:
        return pack(sources, target, options, PackProgress(), pool)
