"""Numbers of one interval, the same in every view; None means not available."""

from __future__ import annotations

from dataclasses import dataclass, replace

from iofast.meter.clock import PUBLISH_NS
from iofast.monitor.bounds import exposed
from iofast.monitor.snapshot import Snapshot, own_devices
from iofast.monitor.thresholds import THRESHOLDS
from iofast.monitor.training import Training, mean, total


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of an interval, or of a stretch of several. Shares are 0 to 1; of several GPUs of a job, their mean."""

    device_busy: float | None
    sm_active: float | None
    stall_low: float | None  # bounds of the stall as a verdict has them, without the sampling error:
    stall_high: float | None  # an interval alone has few samples
    images_per_s: float | None
    loader_cores: float | None  # cores in use by worker processes and loader threads
    disk_bytes_per_s: float | None  # read by the job; by all processes if the job's own is not available
    main_cores: float | None


_EXACT = replace(THRESHOLDS, z=0.0)
_LOT_S = 1.5 * PUBLISH_NS / 1e9  # a loader's page is written so often, or at the end of a step


def figures(snapshot: Snapshot) -> Figures:
    """The numbers of `snapshot`."""
    seconds = max(snapshot.seconds, 1e-9)
    devices = own_devices(snapshot.devices)
    training = Training([snapshot], _EXACT)
    stall = exposed(training)
    images = total(loader.images for loader in snapshot.loaders)
    read = total(process.read_bytes for process in snapshot.processes)
    disk = snapshot.system.disk_read_bytes if read is None else read
    return Figures(
        device_busy=mean(device.busy for device in devices),
        sm_active=mean(device.sm_active for device in devices),
        stall_low=None if stall is None else stall.low,
        stall_high=None if stall is None else stall.high,
        images_per_s=None if images is None else images / _reported_s(snapshot, seconds),
        loader_cores=training.loader_cores,
        disk_bytes_per_s=None if disk is None else disk / seconds,
        main_cores=mean(process.cpu_s / seconds for process in snapshot.processes if process.role == "main"),
    )


def _reported_s(snapshot: Snapshot, seconds: float) -> float:
    """Seconds that a loader's counters cover: its page is written at other times than an interval ends."""
    covered = [(one.step_s or 0.0) * one.steps + one.epoch_start_s for one in snapshot.loaders if one.batches]
    reported = max(covered, default=0.0)
    return reported if reported and abs(reported - seconds) <= _LOT_S else seconds
