"""`pack(on="ray")`: every part of a run is a task on a Ray cluster whose nodes all see source and target.

The driver makes the plan, keeps a bounded number of tasks submitted, and joins the parts. Ray runs a task again,
without limit, if its node or process is lost. Arguments and results of tasks are plain data; so are our errors, which
Ray would wrap in its own. Ray is imported only when it is used. docs/cluster.md is for users.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from iofast import errors
from iofast.containers.publish import PACK_PLAN, Target
from iofast.containers.shards import is_pattern
from iofast.errors import ErrorBudgetError, IofastError, OptionError, TargetError, WorkerError, because, reason_of
from iofast.foreign.options import ForeignOptions
from iofast.machine import cores
from iofast.packing.failures import Failures
from iofast.packing.finished_part import FinishedPart
from iofast.packing.options import RAY, PackOptions
from iofast.packing.pack_work import PackWork
from iofast.packing.part import PackPart
from iofast.packing.parts import PackParts
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.report import PackReport
from iofast.remote.urls import is_url

Pack = Callable[[list[str], str, PackOptions, PackProgress, WorkerPool], PackReport]

_AHEAD = 3  # tasks submitted per task that can run at once: nodes stay busy, and autoscalers see the need
_STORE = 100 << 20  # bytes of a local Ray's object store, which holds only reports; Ray's default is 30 % of memory
_CONNECT = 10.0  # seconds to reach a given address; Ray itself would try for minutes, silently
# Seconds without a result after which, at the end of a run, parts are submitted again if a node was lost meanwhile. Ray
# does so after minutes if the node's connections were not closed, as when its network fails.
_PATIENCE = 10.0
_CANCEL = 10.0  # seconds for cancelled tasks to end
_ADDRESS = re.compile(r"(?:ray://)?\[?([^/\[\]]+)\]?:(\d+)")
_OF_DRIVER = ("on", "ray_cpus", "part", "finish", "finish_when_complete")  # options that tasks do not get


def pack_on_ray(parts: PackParts, pack: Pack, pool: WorkerPool, progress: PackProgress) -> PackReport:
    """Pack all missing parts on the cluster that the options name, and join them. `pack` packs one part in a task.

    Raises errors of tasks as they are in a run without Ray, and `WorkerError` if Ray fails.
    """
    ray = _imported()
    if parts.is_published:
        return parts.finish(pool, progress)
    started = time.monotonic()
    driver = _Driver(ray, parts, pack, parts.work(None), progress)
    try:
        processors = driver.run()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {parts.place.going_on}") from None
    except (ray.exceptions.RayError, ConnectionError) as error:  # the latter from a client of a cluster
        cause = getattr(error, "cause", None) or error  # without the traceback of the task
        words = f"{type(cause).__name__}: {reason_of(cause)}"
        raise WorkerError(f"Ray failed ({words}); {parts.place.going_on}") from error
    report = parts.finish(pool, progress)
    seconds = time.monotonic() - started
    return replace(report, seconds=seconds, workers=processors or report.workers, resumed=driver.resumed)


def _imported() -> Any:
    try:
        import ray
    except ImportError:
        raise OptionError("on=ray needs Ray, which is not installed: pip install 'iofast[ray]'") from None
    return ray


@dataclass(slots=True)
class _Driver:
    """Submits the tasks and follows their progress. `resumed`: images in parts that an earlier run has finished."""

    ray: Any
    parts: PackParts
    pack: Pack
    work: PackWork
    progress: PackProgress
    failures: Failures = field(init=False)
    resumed: int = 0
    _task: Any = None
    _running: dict[Any, PackPart] = field(default_factory=dict)  # by the reference to the task's result

    def __post_init__(self) -> None:
        place, images = self.parts.place, len(self.work.source)
        self.failures = Failures(images, self.parts.options.allowed_errors(images), place.path, self.work.first)

    def run(self) -> int:
        """Pack the missing parts. Returns the processors of the cluster; 0 if no part was missing."""
        count = self.work.plan.parts or 1
        missing = [PackPart(number, count) for number in self.parts.missing(count)]
        finished = {PackPart(number, count) for number in range(1, count + 1)} - set(missing)
        self.resumed = sum(self._count_failures(part) for part in sorted(finished))
        if not missing:
            return 0
        with _connected(self.ray, self.parts.options.on or RAY):
            self._warn_of_size()
            self._task = self.ray.remote(pack_in_task).options(
                num_cpus=self._workers, max_retries=-1, retry_exceptions=False, name="iofast pack"
            )
            self.progress.begin(len(self.work.source), self.resumed)
            try:
                self._pack(missing)
            finally:
                self.progress.end()
                self._cancel()
            return self._processors()

    def _pack(self, missing: Sequence[PackPart]) -> None:
        """Keep tasks submitted until all parts are packed."""
        left, waiting, repeated = set(missing), deque(missing), self._lost_nodes()
        while left:
            while waiting and len(self._running) < self._window():
                self._submit(waiting.popleft())
            ready, _ = self.ray.wait(list(self._running), timeout=_PATIENCE)
            for each in ready:
                part, result = self._running.pop(each), self.ray.get(each)
                if part in left:
                    self._finished(part, result)
                    left.remove(part)
            if not ready and not waiting and (lost := self._lost_nodes()) > repeated:
                repeated = lost
                for part in sorted(left):  # the tasks that were not on these nodes win, or find the part packed
                    self._submit(part)

    def _submit(self, part: PackPart) -> None:
        parts, text = self.parts, f"{part.number}/{part.total}"
        sources = [absolute(source) for source in parts.sources]
        paths = sources, os.fspath(parts.place.path)
        self._running[self._task.remote(self.pack, *paths, keywords(parts.options), text, self._workers)] = part

    def _lost_nodes(self) -> frozenset[str]:
        return frozenset(node["NodeID"] for node in self.ray.nodes() if not node["Alive"])

    def _finished(self, part: PackPart, result: dict[str, str]) -> None:
        """Count a part that is packed. Raises the error of its task."""
        if "error" in result:
            raise getattr(errors, result["error"])(result["message"])
        images, report = self._count_failures(part), json.loads(result["report"])
        self.progress.step(images, report["bytes_in"], len(self.failures))

    def _count_failures(self, part: PackPart) -> int:
        """Count the failures of a packed part against the budget of the run. Returns the number of its images."""
        place, images = self.parts.place, len(self.parts.of(part, self.work).source)
        try:
            for failure in FinishedPart.load(part.path(place), images).failures:
                self.failures.add(failure)
        except ErrorBudgetError as error:
            raise ErrorBudgetError(f"{error}; give a larger max_errors=, and {place.going_on}") from None
        return images

    @property
    def _workers(self) -> int:
        """Processors and workers of a task."""
        return self.parts.options.ray_cpus or 1

    def _window(self) -> int:
        """How many tasks may be submitted at once. A cluster may grow and shrink."""
        return max(2, _AHEAD * self._processors() // self._workers)

    def _processors(self) -> int:
        return int(self.ray.cluster_resources().get("CPU", 0))

    def _warn_of_size(self) -> None:
        """Warn if no node can run a task now: Ray would wait silently."""
        most = max((int(node["Resources"].get("CPU", 0)) for node in self.ray.nodes() if node["Alive"]), default=0)
        if most < self._workers:
            self.progress.warn(
                f"the largest node of the Ray cluster has {most} processors, and each task needs "
                f"ray_cpus={self._workers}: the tasks wait for a larger node"
            )

    def _cancel(self) -> None:
        """End the tasks that are left after an error, so that they do not hold locks."""
        with contextlib.suppress(self.ray.exceptions.RayError, ConnectionError):
            for each in self._running:
                self.ray.cancel(each, force=True)
            if self._running:
                self.ray.wait(list(self._running), num_returns=len(self._running), timeout=_CANCEL)


@contextlib.contextmanager
def _connected(ray: Any, on: str) -> Iterator[None]:
    """Connect during a `with` block: to the cluster that the program uses already, to `on`, or to RAY_ADDRESS.

    Without any, start Ray on this machine. Raises `WorkerError` if it cannot be reached or started.
    """
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS", "local") if on == RAY else on
    _require_reachable(address)
    own = {"num_cpus": cores(), "object_store_memory": _STORE, "include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", **own)
    except (OSError, RuntimeError, ValueError, ImportError) as error:  # such as another version of Ray or Python there
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        words = f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") else lines[0]  # a traceback: its last line
        raise WorkerError(f"Ray cannot be used at {address}: {words}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _require_reachable(address: str) -> None:
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return
    try:
        socket.create_connection((found[1], int(found[2])), _CONNECT).close()
    except (OSError, OverflowError) as error:
        words = because(error) if isinstance(error, OSError) else str(error)
        raise WorkerError(f"Ray cannot be reached at {address}: {words}") from None


def absolute(source: str) -> str:
    """`source` for a process with another working directory. Special characters of a pattern keep their meaning."""
    if is_url(source):
        return source
    folder = os.getcwd()
    return os.path.join(glob.escape(folder) if is_pattern(source) else folder, source)


def keywords(options: PackOptions) -> dict[str, object]:
    """The options of a task, as plain data that any process can use."""
    given = {
        each.name: getattr(options, each.name)
        for each in fields(options)
        if each.name not in _OF_DRIVER and getattr(options, each.name) != each.default
    }
    if options.foreign is not None:
        given["foreign"] = asdict(ForeignOptions.of(options.foreign))
    return given


_kept: WorkerPool | None = None  # of this process of Ray, for all its tasks: starting one takes 0.3 s


def pack_in_task(
    pack: Pack, source: list[str], target: str, options: dict[str, Any], part: str, workers: int
) -> dict[str, str]:
    """Pack one part in a process of Ray. Returns the report as JSON, or the class and message of an error of ours."""
    try:
        if not (Target(target).partial / PACK_PLAN).exists():  # a task of a lost driver: it must not begin a new run
            raise TargetError(f"{target} has no plan for part {part}: it was finished or removed meanwhile")
        report = pack(source, target, PackOptions(**options, part=part), PackProgress(), _pool(workers))
    except (IofastError, OSError) as error:
        _end_pool()
        kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        return {"error": next(kinds, TargetError.__name__), "message": str(error)}
    except BaseException:
        _end_pool()
        raise
    return {"report": report.to_json()}


def _pool(workers: int) -> WorkerPool:
    """The pool of this process. Its workers end with the process."""
    global _kept
    if _kept is not None and _kept.count != workers:
        _end_pool()
    if _kept is None:
        pool = WorkerPool(workers)
        pool.start()
        _kept = pool
    return _kept


def _end_pool() -> None:
    """End the workers, which may still transcode images of a part that failed."""
    global _kept
    if _kept is not None:
        _kept.close()
        _kept = None
