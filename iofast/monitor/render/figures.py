"""Numbers of one interval, the same in every view; None means not available."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from iofast.meter.clock import PUBLISH_NS
from iofast.monitor.bounds import exposed
from iofast.monitor.snapshot import DeviceFigures, LoaderFigures, Snapshot
from iofast.monitor.thresholds import THRESHOLDS
from iofast.monitor.training import Training, mean, total


@dataclass(frozen=True, slots=True)
class Figures:
    """A point of the timelines. Shares are 0 to 1; of several GPUs of a job, their mean."""

    device_busy: float | None
    sm_active: float | None
    stall_low: float | None  # bounds of the stall as a verdict has them, without the sampling error:
    stall_high: float | None  # an interval alone has few samples
    images_per_s: float | None
    loader_cores: float | None  # cores in use by worker processes and loader threads
    disk_bytes_per_s: float | None  # read by the job; by all processes if the job's own is not available
    main_cores: float | None


NAMES = tuple(field.name for field in fields(Figures))
_EXACT = replace(THRESHOLDS, confidence_z=0.0, chosen_z=0.0)
_LOADER_THREADS = ("pt_data_pin", "iofast")
_LOT_S = 1.5 * PUBLISH_NS / 1e9  # a loader's page is written so often, or at the end of a step


def figures(snapshot: Snapshot) -> Figures:
    """The numbers of `snapshot`."""
    seconds = max(snapshot.seconds, 1e-9)
    devices = own_devices(snapshot)
    stall = exposed(Training([snapshot], _EXACT))
    images = total(loader.images for loader in snapshot.loaders)
    read = total(process.read_bytes for process in snapshot.processes)
    disk = snapshot.system.disk_read_bytes if read is None else read
    return Figures(
        device_busy=mean(device.busy for device in devices),
        sm_active=mean(device.sm_active for device in devices),
        stall_low=None if stall is None else stall.low,
        stall_high=None if stall is None else stall.high,
        images_per_s=None if images is None else images / _reported_s(snapshot, seconds),
        loader_cores=_loader_cores(snapshot, seconds),
        disk_bytes_per_s=None if disk is None else disk / seconds,
        main_cores=mean(process.cpu_s / seconds for process in snapshot.processes if process.role == "main"),
    )


def own_devices(snapshot: Snapshot) -> tuple[DeviceFigures, ...]:
    """GPUs on which the job was seen; if it was seen on none, those whose processes the driver does not name."""
    own = tuple(device for device in snapshot.devices if device.own)
    return own or tuple(device for device in snapshot.devices if device.own is None)


def busiest(snapshot: Snapshot) -> LoaderFigures | None:
    """The loader with most batches in this interval; None without any."""
    active = [loader for loader in snapshot.loaders if loader.batches]
    return max(active, key=lambda loader: loader.batches, default=None)


def step_phases(snapshot: Snapshot) -> dict[str, float]:
    """Shares of a step by phase of `meter.step` in this interval, the largest first; {} without phases."""
    loader = busiest(snapshot)
    if loader is None or not loader.step_s:
        return {}
    shares = {name: seconds / (loader.step_s * loader.batches) for name, seconds in loader.phases.items()}
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


def _reported_s(snapshot: Snapshot, seconds: float) -> float:
    """Seconds that the loader's counters cover: its page is written at other times than an interval ends."""
    loader = busiest(snapshot)
    reported = 0.0 if loader is None else (loader.step_s or 0.0) * loader.steps + loader.epoch_start_s
    return reported if reported and abs(reported - seconds) <= _LOT_S else seconds


def _loader_cores(snapshot: Snapshot, seconds: float) -> float | None:
    workers = [process.cpu_s for process in snapshot.processes if process.role == "worker"]
    threads = [thread.cpu_s for thread in snapshot.threads if thread.name.startswith(_LOADER_THREADS)]
    return sum(workers + threads) / seconds if workers or threads else None
