"""What the GPUs do, by NVML: one `DeviceFigures` for each GPU or MIG instance, and busy readings with their times.

Busy is the share of time in which a kernel ran, however few of the SMs it used. The driver measures it in periods of
1/6 s to 1 s, by product, and rounds it to whole percent; it keeps about a hundred of them with their times, so asking
once a second loses none and costs less than asking often. Over an interval the periods are averaged by their overlap:
the mean is within half a percent, and what happened in the last period before "now" is not in it yet.

Sources, best first. Busy: the kept samples; GPM (on MIG, where samples are refused); the last period alone. Bytes from
the host: GPM; the byte counter.
"""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from iofast.monitor.probe.driver import Driver, DriverError, Unit
from iofast.monitor.probe.gpm import Gpm, GpmFigures
from iofast.monitor.probe.pcie import Pcie
from iofast.monitor.snapshot import DeviceFigures

_UTILIZATION = 1  # NVML_GPU_UTILIZATION_SAMPLES
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2: what the driver itself holds is told apart
_COVERED = 0.5  # of an interval; with less, its samples do not speak for it
_LEAD_S = 2.5  # samples are asked for from so long before: the length of one is the distance from the one before
_CLOCK_SET_S = 0.005  # two clocks that are read one after the other differ by less
_NODE_WORDS = 16  # of 64 bits: 1024 NUMA nodes
_INITIAL_NAMESPACE = 0xEFFFFFFC  # inode of the machine's own pid namespace (PROC_PID_INIT_INO in the kernel)
_KEPT = 64  # readings of GPM that are kept for a device
# Bits of the clock event reasons that slow a GPU down against its will; idling and clocks that were asked for do not.
_REASONS = ((0x04 | 0x80, "power"), (0x20 | 0x40, "thermal"))
_HARDWARE, _HARDWARE_NAMED = 0x08, 0x40 | 0x80  # hardware slowdown; where one of these is set too, it is the reason


@dataclass(frozen=True, slots=True)
class Reading:
    """A stretch of `seconds` that ended at `time_s` (monotonic), in which the GPU was busy for the share `busy`."""

    time_s: float
    seconds: float
    busy: float


class NvmlProbe:
    """The GPUs of this machine. For any thread. `note` says why there is no probe, or what the GPUs do not tell."""

    note: str = ""  # of the class: why the last `open` returned None

    def __init__(self, driver: Driver) -> None:
        self._driver, self._openings = driver, driver.openings
        self._gpm, self._pcie = Gpm(driver), Pcie(driver)
        self._units: tuple[Unit, ...] = ()
        self._kept: dict[str, list[Reading]] = {}  # by uuid: readings of GPM, where there are no samples
        self._ahead = time.time() - time.monotonic()
        self._lock = threading.RLock()

    @classmethod
    def open(cls) -> Self | None:
        """None where there is no driver or no GPU; `NvmlProbe.note` says why then."""
        try:
            probe = cls(Driver())
        except DriverError as error:
            cls.note = str(error)
            return None
        if not probe._look():
            cls.note = "; ".join(probe.notes) or "GPUs are not seen: the NVIDIA driver lists none"
            probe.close()
            return None
        cls.note = ""
        for unit in probe._units:
            probe._gpm.figures(unit)  # the first sample of two
            probe._pcie.received(unit, None)
        return probe

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each GPU and reason: what it does not tell, and why."""
        with self._lock:
            return self._driver.notes()

    def devices(self, pids: Collection[int], seconds: float) -> tuple[DeviceFigures, ...]:
        """Every GPU, or its MIG instances in its place, over the last `seconds`. `pids` are the job's processes.

        Nothing is raised for a GPU that vanishes or a driver that restarts: its figures are None and there is a note.
        """
        with self._lock:
            figures = tuple(self._device(unit, frozenset(pids), seconds) for unit in self._look())
            self.note = "; ".join(self._driver.notes())
            return figures

    def readings(self, index: int, since: float, uuid: str | None = None) -> list[Reading]:
        """Busy readings of GPU `index` that ended after `since` (monotonic), oldest first.

        `uuid` picks one of several MIG instances, whose readings are as long as the time between calls of `devices`.
        Empty where the driver has none, or where it is not clear whose to give.
        """
        with self._lock:
            units = [unit for unit in self._units if unit.index == index and uuid in (None, unit.uuid)]
            if len(units) != 1:
                return []
            found = self._samples(units[0], since) or self._kept.get(units[0].uuid, [])
            return [reading for reading in found if reading.time_s > since]

    def processes(self) -> dict[int, set[int]]:
        """Processes with a context on a GPU, by pid: indices of their GPUs. Only pids that exist here: in a container
        the driver may report those of the machine."""
        found: dict[int, set[int]] = {}
        with self._lock:
            for unit in self._look():
                for pid in self._pids(unit) or ():
                    if _exists(pid):
                        found.setdefault(pid, set()).add(unit.index)
        return found

    def close(self) -> None:
        """Give back what the driver holds for this probe."""
        with self._lock:
            self._gpm.close()
            self._driver.close()

    def _look(self) -> tuple[Unit, ...]:
        self._units = self._driver.units()
        if self._driver.openings != self._openings:  # samples of the driver before are lost: it cannot take them back
            self._openings = self._driver.openings
            self._gpm, self._pcie = Gpm(self._driver), Pcie(self._driver)
        return self._units

    def _device(self, unit: Unit, pids: frozenset[int], seconds: float) -> DeviceFigures:
        ask = self._driver.ask
        gpm = self._gpm.figures(unit)
        if gpm is not None:
            self._keep(unit, gpm)
        link = self._pcie.link(unit)
        received = gpm.rx_bytes_per_s if gpm is not None else None
        if received is None:
            received = self._pcie.received(unit, link)
        else:
            self._driver.settle(unit, "PCIe bytes")
        power = ask(unit, "power", "nvmlDeviceGetPowerUsage", unit.whole)
        limit = ask(unit, "power limit", "nvmlDeviceGetEnforcedPowerLimit", unit.whole)
        memory = ask(unit, "memory", "nvmlDeviceGetMemoryInfo", unit.handle, _MEMORY_V2)
        jpeg = ask(unit, "JPEG engine", "nvmlDeviceGetJpgUtilization", unit.whole)
        own, others = self._owner(unit, pids)
        figures = DeviceFigures(
            index=unit.index,
            name=unit.name,
            uuid=unit.uuid,
            busy=self._busy(unit, gpm, seconds),
            sm_active=gpm.sm if gpm is not None else None,
            tensor_active=gpm.tensor if gpm is not None else None,
            dram_active=gpm.dram if gpm is not None else None,
            pcie_rx_bytes=None if received is None else round(received * seconds),
            pcie_bytes_per_s=link,
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            memory_used=None if memory is None else memory.used,
            memory_total=None if memory is None else memory.total,
            throttle_reasons=self._reasons(unit),
            own=own,
            others=others,
            mig=unit.instance is not None,
            jpeg_busy=None if jpeg is None else min(1.0, jpeg[0] / 100),
            numa_node=self._node(unit),
            capability=self._capability(unit),
        )
        if self._driver.absent(unit):
            self._gpm.forget(unit.uuid)
            self._pcie.forget(unit.uuid)
        return figures

    def _busy(self, unit: Unit, gpm: GpmFigures | None, seconds: float) -> float | None:
        until = time.monotonic()
        busy = mean_busy(self._samples(unit, until - seconds), until - seconds, until)
        if busy is None and gpm is not None:
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
        ordered = sorted((end - ahead, value / 100) for end, value in ends.items() if 0 < end < latest)
        return _with_lengths(ordered)

    def _clocks(self) -> float:
        """What the wall clock is ahead of the monotonic one. It stays as it was until the clock was set: a sample
        must have the same time whenever it is asked for."""
        ahead = time.time() - time.monotonic()
        if abs(ahead - self._ahead) > _CLOCK_SET_S:
            self._ahead = ahead
        return self._ahead

    def _keep(self, unit: Unit, gpm: GpmFigures) -> None:
        kept = self._kept.setdefault(unit.uuid, [])
        if gpm.busy is not None and (not kept or kept[-1].time_s < gpm.time_s):
            kept.append(Reading(gpm.time_s, gpm.seconds, gpm.busy))
            del kept[:-_KEPT]

    def _reasons(self, unit: Unit) -> tuple[str, ...]:
        name = "nvmlDeviceGetCurrentClocksEventReasons"
        if not hasattr(self._driver.nvml, name):
            name = "nvmlDeviceGetCurrentClocksThrottleReasons"  # as it was called before driver 535
        bits = self._driver.ask(unit, "clock limits", name, unit.whole) or 0
        names = [word for mask, word in _REASONS if bits & mask]
        if bits & _HARDWARE and not bits & _HARDWARE_NAMED:
            names.append("hardware")
        return tuple(names)

    def _node(self, unit: Unit) -> int | None:
        """The NUMA node that the GPU hangs on. (nvmlDeviceGetNumaNodeId names the node of the GPU's own memory.)"""
        asked = ("NUMA node", "nvmlDeviceGetMemoryAffinity", unit.whole, _NODE_WORDS, 0)
        words = self._driver.ask(unit, *asked)
        if words is None:
            return None
        nodes = [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]
        return nodes[0] if len(nodes) == 1 else None

    def _capability(self, unit: Unit) -> tuple[int, int] | None:
        answer = self._driver.ask(unit, "CUDA capability", "nvmlDeviceGetCudaComputeCapability", unit.whole)
        return None if answer is None else (answer[0], answer[1])

    def _pids(self, unit: Unit) -> list[int] | None:
        found = self._driver.ask(unit, "processes", "nvmlDeviceGetComputeRunningProcesses", unit.handle)
        return None if found is None else [process.pid for process in found]

    def _owner(self, unit: Unit, pids: frozenset[int]) -> tuple[bool | None, int | None]:
        """Whether the job is on the GPU, and how many other processes are; None where pids say nothing here."""
        found = self._pids(unit)
        if found is None:
            return None, None
        if pids.intersection(found):
            return True, len(set(found) - pids)
        if in_container() and not any(_exists(pid) for pid in found):  # pids of the machine, or none shown at all
            return None, None
        return False, len(set(found))


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
    """Whether this process has a pid namespace of its own, so that the driver may report pids it does not know."""
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


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
