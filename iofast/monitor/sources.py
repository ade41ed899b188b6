"""Where `Follow` gets jobs, snapshots and verdicts: this machine's processes, GPUs and telemetry pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from iofast.monitor.find import LEAST_AGE_S, MonitorError, ProcessTable, find_jobs, job_of
from iofast.monitor.live import Sources
from iofast.monitor.probe.nvml import NvmlProbe
from iofast.monitor.request import Request
from iofast.monitor.snapshot import Job
from iofast.monitor.verdict import classify
from iofast.monitor.watching import Watch

_PROVES_ITSELF_S = 8.0  # a started program without any sign of training is watched from then on


def machine(request: Request, program: int | None = None) -> Sources:
    """The real sources. `program` is the pid of a started program. Raises MonitorError when a pid or GPU is missing."""
    nvml = NvmlProbe.open()
    if request.gpu is not None and nvml is None:
        raise MonitorError(f"--gpu {request.gpu}: no GPU can be seen: {NvmlProbe.note}")
    find: Callable[[], Sequence[Job]] = partial(_on_gpu, request.gpu, nvml)
    if request.pids:
        named = [job_of(pid) for pid in request.pids]
        find = lambda: named  # noqa: E731
    elif program is not None:
        find = partial(_started, program, nvml, time.monotonic())
    return Sources(find, lambda job: Watch(job, request, nvml), classify)


def _on_gpu(gpu: int | None, nvml: NvmlProbe | None, least_age_s: float = LEAST_AGE_S) -> Sequence[Job]:
    """All jobs, or those on one GPU. In a container the driver may name no processes: then all."""
    gpus = nvml.processes() if nvml is not None else {}
    return [job for job in find_jobs(gpus, least_age_s) if gpu is None or not gpus or gpu in gpus.get(job.pid, ())]


def _started(program: int, nvml: NvmlProbe | None, since: float) -> Sequence[Job]:
    """The trainings of a started program: it may be a launcher, with the training in a process far below."""
    family = {program} | ProcessTable(None).below(program)  # of any user: a set-uid starter may be in between
    found = [job for job in _on_gpu(None, nvml, least_age_s=0.0) if job.pid in family]
    if found or time.monotonic() - since < _PROVES_ITSELF_S:
        return found
    try:
        return [job_of(program)]
    except MonitorError:  # it has ended, or has started several that do not train yet
        return []
