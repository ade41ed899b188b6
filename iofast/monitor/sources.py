"""Where `Follow` gets its jobs, snapshots and verdicts from: this machine's processes, GPUs and telemetry pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from iofast.monitor.find import MonitorError, find_jobs, job_of
from iofast.monitor.live import Sources
from iofast.monitor.probe.nvml import NvmlProbe
from iofast.monitor.request import Request
from iofast.monitor.snapshot import Job
from iofast.monitor.verdict import classify
from iofast.monitor.watching import Watch, WatchOptions

_PROVES_ITSELF_S = 8.0  # a started program that shows none of the signs of training by then is watched all the same


def machine(request: Request, program: int | None = None) -> Sources:
    """The real ones. `program` is the pid that was started. Raises MonitorError where what was named is not there."""
    nvml = NvmlProbe.open()
    options = WatchOptions(interval=request.interval, stacks=request.stacks, device=request.gpu)
    if request.gpu is not None and nvml is None:
        raise MonitorError(f"--gpu {request.gpu}: no GPU can be seen: {NvmlProbe.note}")
    find: Callable[[], Sequence[Job]] = lambda: find_jobs(nvml)  # noqa: E731
    if request.pids:
        named = [job_of(pid) for pid in request.pids]
        find = lambda: named  # noqa: E731
    elif program is not None:
        find = _Started(program, nvml)
    elif request.gpu is not None and nvml is not None:
        find = _On(request.gpu, nvml)
    return Sources(find, lambda job: Watch(job, options, nvml), classify)


class _On:
    """Finds the jobs on one GPU; all of them, where the driver names no processes (in a container)."""

    def __init__(self, gpu: int, nvml: NvmlProbe) -> None:
        self._gpu, self._nvml = gpu, nvml

    def __call__(self) -> Sequence[Job]:
        processes = self._nvml.processes()
        return [job for job in find_jobs(self._nvml) if not processes or self._gpu in processes.get(job.pid, ())]


class _Started:
    """Finds the training within a program that was started: it may be a launcher, and train in a process far below."""

    def __init__(self, pid: int, nvml: NvmlProbe | None) -> None:
        self._pid, self._nvml, self._since = pid, nvml, time.monotonic()

    def __call__(self) -> Sequence[Job]:
        import psutil

        try:
            family = {self._pid, *(child.pid for child in psutil.Process(self._pid).children(recursive=True))}
        except psutil.Error:
            return []  # it has ended
        found = [job for job in find_jobs(self._nvml) if job.pid in family]
        if found or time.monotonic() - self._since < _PROVES_ITSELF_S:
            return found
        try:
            return [job_of(self._pid)]
        except MonitorError:  # it has ended, or has started several that do not train yet
            return []
