"""The GPUs by NVML: `DeviceFigures` for each GPU or MIG instance, and busy readings with their times.

Busy is the share of time in which a kernel ran, however few of the SMs it used. The driver measures it in periods of
1/6 s to 1 s, by product, rounds it to whole percent, and keeps about a hundred periods with their times, so asking once
a second loses none. Over an interval the periods are averaged by their overlap: the mean is within half a percent,
without the last period before "now".

Sources, best first. Busy: the kept samples; GPM (on MIG, where samples are refused); the last period alone. Bytes from
the host: GPM; the byte counter.
"""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Self

from iofast.monitor.probe.driver import Driver, DriverError, Unit
from iofast.monitor.probe.gpu_counters import Gpm, GpmFigures, Pcie
from iofast.monitor.probe.states import folder
from iofast.monitor.snapshot import DeviceFigures

_UTILIZATION = 1  # NVML_GPU_UTILIZATION_SAMPLES
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2: without what the driver itself holds
_COVERED = 0.5  # of an interval; samples that cover less do not speak for it
_LEAD_S = 2.5  # samples are asked for from so long before: the length of one is the distance from the one before
_CLOCK_SET_S = 0.005  # two clocks that are read one after the other differ by less
_NODE_WORDS = 16  # of 64 bits: 1024 NUMA nodes
_INITIAL_NAMESPACE = 0xEFFFFFFC  # inode of the machine's own pid namespace (PROC_PID_INIT_INO in the kernel)
_KEPT = 64  # readings of GPM that are kept for a device
# Bits of the clock event reasons that slow a GPU down unintentionally: not idling, nor clocks set by an application.
_THROTTLED = ((0x04 | 0x80, "power"), (0x20 | 0x40, "thermal"))
_HARDWARE, _HARDWARE_NAMED = 0x08, 0x40 | 0x80  # hardware slowdown; where one of these is set too, it is the reason


@dataclass(frozen=True, slots=True)
class Reading:
    """A stretch of `seconds` that ended at `time_s` (monotonic), in which the GPU was busy for the share `busy`."""

    time_s: float
    seconds: float
    busy: float


class _Counters:
    """What earlier calls have read of one unit."""

    def __init__(self, driver: Driver) -> None:
        self.gpm, self.pcie = Gpm(driver), Pcie(driver)
        self.readings: deque[Reading] = deque(maxlen=_KEPT)  # by GPM, where there are no samples


class NvmlProbe:
    """The GPUs of this machine. Thread-safe."""

    note: str = ""  # of the class: why the last `open` returned None

    def __init__(self, driver: Driver) -> None:
        self._driver, self._openings = driver, driver.openings
        self._units: tuple[Unit, ...] = ()
        self._counters: dict[str, _Counters] = {}  # by uuid
        self._ahead = time.time() - time.monotonic()
        self._lock = threading.RLock()

    @classmethod
    def open(cls) -> Self | None:
        """None where there is no driver or no GPU; then `NvmlProbe.note` says why."""
        try:
            probe = cls(Driver())
        except DriverError as error:
            cls.note = str(error)
            return None
        if not probe._enumerate():
            cls.note = "; ".join(probe.notes) or "GPUs are not seen: the NVIDIA driver lists none"
            probe.close()
            return None
        cls.note = ""
        for unit in probe._units:  # the first of two samples
            counters = probe._counters_of(unit)
            counters.gpm.figures(unit)
            counters.pcie.received(unit, None)
        return probe

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each GPU and reason: which figures are missing, and why."""
        with self._lock:
            return self._driver.notes()

    def devices(self, pids: Collection[int], seconds: float) -> tuple[DeviceFigures, ...]:
        """Every GPU, or its MIG instances in its place, over the last `seconds`. `pids` are the job's processes.

        A GPU that vanishes or a driver that restarts raises nothing: its figures are None and there is a note.
        """
        with self._lock:
            return tuple(self._device(unit, frozenset(pids), seconds) for unit in self._enumerate())

    def readings(self, index: int, since: float, uuid: str | None = None) -> list[Reading]:
        """Busy readings of GPU `index` that ended after `since` (monotonic), oldest first.

        `uuid` picks one of several MIG instances, whose readings are as long as the time between calls of `devices`.
        Empty where the driver has none, or where the instance is ambiguous.
        """
        with self._lock:
            units = [unit for unit in self._units if unit.index == index and uuid in (None, unit.uuid)]
            if len(units) != 1:
                return []
            readings = self._samples(units[0], since) or self._counters_of(units[0]).readings
            return [reading for reading in readings if reading.time_s > since]

    def processes(self) -> dict[int, set[int]]:
        """Indices of the GPUs on which a process has a context, by pid.

        Only pids that exist here: in a container the driver may report those of the machine.
        """
        gpus: dict[int, set[int]] = {}
        with self._lock:
            for unit in self._enumerate():
                for pid in filter(_exists, self._pids(unit) or ()):
                    gpus.setdefault(pid, set()).add(unit.index)
        return gpus

    def close(self) -> None:
        """Free what the driver holds for this probe."""
        with self._lock:
            for counters in self._counters.values():
                counters.gpm.close()
            self._driver.close()

    def _enumerate(self) -> tuple[Unit, ...]:
        self._units = self._driver.units()
        if self._driver.openings != self._openings:  # samples of the driver before are lost, and cannot be freed
            self._openings = self._driver.openings
            self._counters.clear()
        return self._units

    def _counters_of(self, unit: Unit) -> _Counters:
        if unit.uuid not in self._counters:
            self._counters[unit.uuid] = _Counters(self._driver)
        return self._counters[unit.uuid]

    def _device(self, unit: Unit, pids: frozenset[int], seconds: float) -> DeviceFigures:
        def ask(figure: str, function: str, *arguments: Any) -> Any:
            return self._driver.ask(unit, figure, function, unit.whole, *arguments)

        counters = self._counters_of(unit)
        gpm = counters.gpm.figures(unit)
        if gpm.busy is not None and (not counters.readings or counters.readings[-1].time_s < gpm.time_s):
            counters.readings.append(Reading(gpm.time_s, gpm.seconds, gpm.busy))
        link, received = counters.pcie.link(unit), gpm.rx_bytes_per_s
        if received is None:
            received = counters.pcie.received(unit, link)
        else:
            self._driver.note(unit, "PCIe bytes", None)
        power = ask("power", "nvmlDeviceGetPowerUsage")
        limit = ask("power limit", "nvmlDeviceGetEnforcedPowerLimit")
        memory = self._driver.ask(unit, "memory", "nvmlDeviceGetMemoryInfo", unit.handle, _MEMORY_V2)
        jpeg = ask("JPEG engine", "nvmlDeviceGetJpgUtilization")
        capability = ask("CUDA capability", "nvmlDeviceGetCudaComputeCapability")
        own, others = self._owner(unit, pids)
        figures = DeviceFigures(
            index=unit.index,
            name=unit.name,
            uuid=unit.uuid,
            busy=self._busy(unit, gpm, seconds),
            sm_active=gpm.sm,
            tensor_active=gpm.tensor,
            dram_active=gpm.dram,
            pcie_rx_bytes=None if received is None else round(received * seconds),
            pcie_bytes_per_s=link,
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            memory_used=None if memory is None else memory.used,
            memory_total=None if memory is None else memory.total,
            throttle_reasons=self._throttled(unit),
            own=own,
            others=others,
            mig=unit.instance is not None,
            jpeg_busy=None if jpeg is None else min(1.0, jpeg[0] / 100),
            # nvmlDeviceGetNumaNodeId names the node of the GPU's own memory instead
            numa_node=_only_bit(ask("NUMA node", "nvmlDeviceGetMemoryAffinity", _NODE_WORDS, 0) or ()),
            capability=None if capability is None else (capability[0], capability[1]),
        )
        if self._driver.absent(unit):
            self._counters.pop(unit.uuid).gpm.close()
        return figures

    def _busy(self, unit: Unit, gpm: GpmFigures, seconds: float) -> float | None:
        until = time.monotonic()
        busy = mean_busy(self._samples(unit, until - seconds), until - seconds, until)
        if busy is None:
            busy = gpm.busy
        if busy is None and unit.instance is None:
            rates = self._driver.ask(unit, "busy share", "nvmlDeviceGetUtilizationRates", unit.handle)
            busy = None if rates is None or rates.gpu > 100 else rates.gpu / 100
        return busy

    def _samples(self, unit: Unit, since: float) -> list[Reading]:
        """The driver's own samples; the first of them may have ended before `since`."""
        if unit.instance is not None:
            return []
        ahead, latest = self._clocks(), time.time() + 1
        last = max(0, round((since + ahead - _LEAD_S) * 1e6))
        answer = self._driver.ask(unit, "busy samples", "nvmlDeviceGetSamples", unit.handle, _UTILIZATION, last)
        if answer is None:
            return []
        ends = {s.timeStamp / 1e6: s.sampleValue.uiVal for s in answer[1] if s.sampleValue.uiVal <= 100}
        return _with_lengths(sorted((end - ahead, value / 100) for end, value in ends.items() if 0 < end < latest))

    def _clocks(self) -> float:
        """How far the wall clock is ahead of the monotonic one.

        It changes only when the clock was set, as a sample must have the same time whenever it is asked for.
        """
        ahead = time.time() - time.monotonic()
        if abs(ahead - self._ahead) > _CLOCK_SET_S:
            self._ahead = ahead
        return self._ahead

    def _throttled(self, unit: Unit) -> tuple[str, ...]:
        name = "nvmlDeviceGetCurrentClocksEventReasons"
        if not hasattr(self._driver.nvml, name):
            name = "nvmlDeviceGetCurrentClocksThrottleReasons"  # as it was called before driver 535
        bits = self._driver.ask(unit, "clock limits", name, unit.whole) or 0
        names = [word for mask, word in _THROTTLED if bits & mask]
        if bits & _HARDWARE and not bits & _HARDWARE_NAMED:
            names.append("hardware")
        return tuple(names)

    def _pids(self, unit: Unit) -> list[int] | None:
        processes = self._driver.ask(unit, "processes", "nvmlDeviceGetComputeRunningProcesses", unit.handle)
        return None if processes is None else [process.pid for process in processes]

    def _owner(self, unit: Unit, pids: frozenset[int]) -> tuple[bool | None, int | None]:
        """Whether the job is on the GPU, and how many other processes are; None where pids say nothing here."""
        listed = self._pids(unit)
        if listed is None:
            return None, None
        own = not pids.isdisjoint(listed)
        if not own and in_container() and not any(map(_exists, listed)):  # the machine's pids, or none shown at all
            return None, None
        return own, len(set(listed) - pids)


def mean_busy(readings: list[Reading], since: float, until: float) -> float | None:
    """The mean over an interval, each reading weighed with its overlap; None where they cover less than half of it."""
    covered = total = 0.0
    for reading in readings:
        overlap = min(reading.time_s, until) - max(reading.time_s - reading.seconds, since)
        if overlap > 0:
            covered += overlap
            total += overlap * reading.busy
    return total / covered if covered > 0 and covered >= _COVERED * (until - since) else None


def in_container() -> bool:
    """Whether this process has its own pid namespace, so that the driver may report pids of another one."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino != _INITIAL_NAMESPACE
    except OSError:
        return True


def _with_lengths(samples: list[tuple[float, float]]) -> list[Reading]:
    """Each (end, busy) with its length: the distance to the end before, or the usual one, after a gap and at first."""
    gaps = [after[0] - before[0] for before, after in itertools.pairwise(samples)]
    if not gaps:
        return []  # one sample alone may stand for any time
    usual = statistics.median(gaps)
    lengths = [usual, *(gap if gap < 1.5 * usual else usual for gap in gaps)]
    return [Reading(end, length, busy) for (end, busy), length in zip(samples, lengths, strict=True)]


def _only_bit(words: Sequence[int]) -> int | None:
    """The place of the only bit that is set in words of 64 bits."""
    places = [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    return places[0] if len(places) == 1 else None


def _exists(pid: int) -> bool:
    return folder(pid).exists()
