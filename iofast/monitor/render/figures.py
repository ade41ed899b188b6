"""One interval's numbers, the same in every view. None stands for "not available", as in the snapshot."""

from __future__ import annotations

from dataclasses import dataclass, fields

from iofast.meter.clock import PUBLISH_NS
from iofast.monitor.snapshot import DeviceFigures, LoaderFigures, Snapshot


@dataclass(frozen=True, slots=True)
class Figures:
    """What the timelines show. Shares are 0 to 1; of several GPUs of a job, their mean."""

    device_busy: float | None
    sm_active: float | None
    stall_low: float | None  # of this interval alone; the verdict's bounds rest on many
    stall_high: float | None
    images_per_s: float | None
    loader_cores: float | None  # cores that worker processes and loader threads used
    disk_bytes_per_s: float | None  # read from disks by the job; by everybody, where the job's is not to be had
    main_cores: float | None


NAMES = tuple(field.name for field in fields(Figures))
_LOADER_THREADS = ("pt_data_pin", "iofast")
_LOT_S = 1.5 * PUBLISH_NS / 1e9  # a page is written so often, or at the end of a step


def figures(snapshot: Snapshot) -> Figures:
    """The numbers of `snapshot`."""
    seconds = max(snapshot.seconds, 1e-9)
    low, high = _stall(snapshot, seconds)
    devices = own_devices(snapshot)
    return Figures(
        device_busy=_mean([device.busy for device in devices]),
        sm_active=_mean([device.sm_active for device in devices]),
        stall_low=low,
        stall_high=high,
        images_per_s=_images(snapshot, seconds),
        loader_cores=_loader_cores(snapshot, seconds),
        disk_bytes_per_s=_disk(snapshot, seconds),
        main_cores=_mean([process.cpu_s / seconds for process in snapshot.processes if process.role == "main"]),
    )


def own_devices(snapshot: Snapshot) -> tuple[DeviceFigures, ...]:
    """The job's GPUs: those it is seen on; all that the driver does not say it of, where it is seen on none."""
    own = tuple(device for device in snapshot.devices if device.own)
    return own or tuple(device for device in snapshot.devices if device.own is None)


def busiest(snapshot: Snapshot) -> LoaderFigures | None:
    """The loader that handed over most batches: of several the one that this interval is about."""
    active = [loader for loader in snapshot.loaders if loader.batches]
    return max(active, key=lambda loader: loader.batches, default=None)


def step_phases(snapshot: Snapshot) -> dict[str, float]:
    """Shares of a step by name of `meter.step` in this interval, the largest first; {} where nobody says them."""
    loader = busiest(snapshot)
    if loader is None or not loader.step_s:
        return {}
    shares = {name: seconds / (loader.step_s * loader.batches) for name, seconds in loader.phases.items()}
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


def _mean(values: list[float | None] | list[float]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _stall(snapshot: Snapshot, seconds: float) -> tuple[float | None, float | None]:
    loader = busiest(snapshot)
    if loader is not None:
        late = loader.wait_s if loader.exposed_s is None else loader.exposed_s
        share = min(1.0, late / _told(snapshot, seconds))
        return share, share
    total = sum(window.seconds for window in snapshot.windows)
    if not total:
        return None, None
    low = high = 0.0
    for window in snapshot.windows:
        idle = window.idle
        low += window.seconds * (window.wait_low if idle is None else max(0.0, window.wait_low + idle - 1))
        high += window.seconds * (window.wait_high if idle is None else min(window.wait_high, idle))
    return low / total, high / total


def _images(snapshot: Snapshot, seconds: float) -> float | None:
    counted = [loader.images for loader in snapshot.loaders if loader.images is not None]
    return sum(counted) / _told(snapshot, seconds) if counted else None


def _told(snapshot: Snapshot, seconds: float) -> float:
    """The time that the counters of an interval are about: pages are written now and then, not at its ends."""
    loader = busiest(snapshot)
    told = 0.0 if loader is None else (loader.step_s or 0.0) * loader.steps + loader.epoch_start_s
    return told if told and abs(told - seconds) <= _LOT_S else seconds


def _loader_cores(snapshot: Snapshot, seconds: float) -> float | None:
    workers = [process.cpu_s for process in snapshot.processes if process.role == "worker"]
    threads = [thread.cpu_s for thread in snapshot.threads if thread.name.startswith(_LOADER_THREADS)]
    return sum(workers + threads) / seconds if workers or threads else None


def _disk(snapshot: Snapshot, seconds: float) -> float | None:
    read = [process.read_bytes for process in snapshot.processes if process.read_bytes is not None]
    if read:
        return sum(read) / seconds
    everybody = snapshot.system.disk_read_bytes
    return None if everybody is None else everybody / seconds
