"""The GPUs, by nvidia-ml-py: how busy they are, their memory, power, processes; None for what a driver does not answer.

Busy is the share of time in which a kernel ran, however few of the SMs it used. The driver measures it in periods of
1/50 to 1 s and keeps about a hundred of them, so their mean since the last question leaves nothing out. GPM (Hopper and
later, without root) adds the shares of SMs, tensor cores and memory bandwidth at work.
"""

import contextlib
import math
import os
import threading
import time
from collections.abc import Collection
from typing import Any

from psutil import pid_exists

from iofast.monitor.snapshot import DeviceFigures, clamped

_UTILIZATION = 1  # NVML_GPU_UTILIZATION_SAMPLES
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2: without what the driver itself holds
_METRICS = {2: "sm_active", 5: "tensor_active", 10: "dram_active"}  # by NVML_GPM_METRIC_...
_APART_S = 0.105  # GPM samples need 100 ms by the driver's clock, and some for the two clocks
_INITIAL_NAMESPACE = 0xEFFFFFFC  # inode of the machine's own pid namespace (PROC_PID_INIT_INO in the kernel)
# Bits of the clock event reasons that slow a GPU down unintentionally: not idling, nor clocks set by an application.
_THROTTLED = ((0x04 | 0x80, "power"), (0x20 | 0x40, "thermal"), (0x08, "hardware"))
_NO_ANSWER_YET = {6, 21}  # not found, no data: an idle GPU has no samples
_LATE_S = 3.0  # a driver hands samples over in lots
_REASONS = {
    3: "not supported by this GPU or its mode",
    4: "no permission",
    9: "the driver is not loaded",
    12: "libnvidia-ml.so.1 was not found (in a container: start it with --gpus all)",
    13: "the driver is too old",
    15: "the GPU is lost (it fell off the bus, or was reset)",
    18: "driver and library are of different versions (after an update: reboot)",
}


class NvmlProbe:
    """The GPUs of this machine: none where there is no driver or no GPU, and then `missing` says why. Thread-safe."""

    def __init__(self) -> None:
        import pynvml  # type: ignore[import-untyped]  # only programs that watch GPUs pay for it

        self.missing = ""
        self._nvml = pynvml
        self._notes: dict[tuple[str, str], str] = {}  # (GPU, figure): reason
        self._seen_us: dict[tuple[str, int], int] = {}  # wall clock of the newest sample, by GPU and by who asked
        self._gpm: dict[str, tuple[Any, float, dict[str, Any]]] = {}  # last sample, its time, last figures
        self._lock = threading.RLock()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.missing = f"GPUs are not seen: {_reason(error)}"
            return
        if not self.devices((), 1.0):
            self.missing = "; ".join(self.notes) or "GPUs are not seen: the NVIDIA driver lists none"
            self.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each GPU and reason: which figures are missing, and why."""
        if self.missing:
            return (self.missing,)
        lines: dict[tuple[str, str], list[str]] = {}
        with self._lock:
            for (label, figure), reason in self._notes.items():
                lines.setdefault((label, reason), []).append(figure)
        return tuple(f"{label}: no {', '.join(figures)}: {reason}" for (label, reason), figures in lines.items())

    def devices(self, pids: Collection[int], seconds: float) -> tuple[DeviceFigures, ...]:
        """Every GPU over the last `seconds`. `pids` are the job's processes, the training itself first.

        A GPU or driver that vanishes raises nothing: its figures are missing and there is a note.
        """
        with self._lock:
            handles = self._handles().items()
            return tuple(self._device(index, handle, tuple(pids), seconds) for index, handle in handles)

    def processes(self) -> dict[int, set[int]]:
        """Indices of the GPUs on which a process has a context, by pid.

        Only pids that exist here: in a container the driver may report those of the machine.
        """
        gpus: dict[int, set[int]] = {}
        with self._lock:
            for index, handle in self._handles().items():
                for pid in filter(pid_exists, self._pids(f"GPU {index}", handle) or ()):
                    gpus.setdefault(pid, set()).add(index)
        return gpus

    def close(self) -> None:
        """Free what the driver holds for this probe."""
        with self._lock, contextlib.suppress(self._nvml.NVMLError):
            for sample, _, _ in self._gpm.values():
                self._free(sample)
            self._gpm.clear()
            self._nvml.nvmlShutdown()

    def _handles(self) -> dict[int, Any]:
        count = 0 if self.missing else self._ask("the driver", "list of GPUs", "nvmlDeviceGetCount") or 0
        found = {at: self._ask(f"GPU {at}", "handle", "nvmlDeviceGetHandleByIndex", at) for at in range(count)}
        return {index: handle for index, handle in found.items() if handle is not None}

    def _ask(self, label: str, figure: str, function: str, *arguments: Any) -> Any:
        """The answer of a function of nvidia-ml-py, or None. `figure` names it in a note."""
        try:
            answer = getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as error:
            if error.value not in _NO_ANSWER_YET:
                self._notes[label, figure] = _reason(error)
            return None
        except (AttributeError, ValueError):  # an older nvidia-ml-py; text that is not UTF-8
            return None
        self._notes.pop((label, figure), None)
        return answer

    def _device(self, index: int, handle: Any, pids: tuple[int, ...], seconds: float) -> DeviceFigures:
        label = f"GPU {index}"

        def ask(figure: str, function: str, *arguments: Any) -> Any:
            return self._ask(label, figure, function, handle, *arguments)

        power, limit = ask("power", "nvmlDeviceGetPowerUsage"), ask("power limit", "nvmlDeviceGetEnforcedPowerLimit")
        memory = ask("memory", "nvmlDeviceGetMemoryInfo", _MEMORY_V2)
        reasons = ask("clock limits", "nvmlDeviceGetCurrentClocksEventReasons") or 0
        own, others = self._owner(label, handle, frozenset(pids))
        return DeviceFigures(
            index=index,
            name=ask("name", "nvmlDeviceGetName") or "GPU",
            uuid=ask("uuid", "nvmlDeviceGetUUID") or "",
            busy=self._busy((label, pids[0] if pids else 0), handle, seconds),
            **dict.fromkeys(_METRICS.values()) | self._activity(label, handle),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            memory_used=None if memory is None else memory.used,
            memory_total=None if memory is None else memory.total,
            throttle_reasons=tuple(word for mask, word in _THROTTLED if reasons & mask),
            own=own,
            others=others,
        )

    def _busy(self, asked: tuple[str, int], handle: Any, seconds: float) -> float | None:
        """The mean of the driver's samples since the same job asked last; without samples the last period."""
        label, longest = asked[0], max(_LATE_S, 2 * seconds)
        since = max(self._seen_us.get(asked, 0), int((time.time() - longest) * 1e6))
        answer = self._ask(label, "busy samples", "nvmlDeviceGetSamples", handle, _UTILIZATION, since)
        found = [each for each in answer[1] if each.timeStamp > since] if answer is not None else []
        shares: list[float] = [each.sampleValue.uiVal / 100 for each in found if each.sampleValue.uiVal <= 100]
        if shares:
            self._seen_us[asked] = max(each.timeStamp for each in found)
            return sum(shares) / len(shares)
        rates = self._ask(label, "busy share", "nvmlDeviceGetUtilizationRates", handle)
        return None if rates is None or rates.gpu > 100 else rates.gpu / 100

    def _activity(self, label: str, handle: Any) -> dict[str, Any]:
        """Shares of SMs, tensor cores and memory bandwidth since the last call; {} where GPM is missing."""
        before = self._gpm.get(label)
        if before is not None and time.monotonic() - before[1] < _APART_S:
            return before[2]
        figure = "SM, tensor and DRAM activity"
        support = self._ask(label, figure, "nvmlGpmQueryDeviceSupport", handle)
        if support is None or not support.isSupportedDevice:
            return {}
        sample = self._ask(label, figure, "nvmlGpmSampleAlloc")
        if sample is None or self._ask(label, figure, "nvmlGpmSampleGet", handle, sample) is None:
            self._free(sample)
            return {}
        values = {} if before is None else self._between(label, before[0], sample)
        self._free(None if before is None else before[0])
        self._gpm[label] = sample, time.monotonic(), values
        return values

    def _free(self, sample: Any) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            if sample is not None:
                self._nvml.nvmlGpmSampleFree(sample)

    def _between(self, label: str, first: Any, second: Any) -> dict[str, Any]:
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.sample1, request.sample2, request.numMetrics = first, second, len(_METRICS)
        for metric, number in zip(request.metrics, _METRICS, strict=False):
            metric.metricId = number
        if self._ask(label, "SM, tensor and DRAM activity", "nvmlGpmMetricsGet", request) is None:
            return {}
        answers = [each for each in request.metrics[: len(_METRICS)] if each.nvmlReturn == 0]
        return {_METRICS[each.metricId]: clamped(each.value / 100) for each in answers if math.isfinite(each.value)}

    def _pids(self, label: str, handle: Any) -> list[int] | None:
        processes = self._ask(label, "processes", "nvmlDeviceGetComputeRunningProcesses", handle)
        return None if processes is None else [process.pid for process in processes]

    def _owner(self, label: str, handle: Any, pids: frozenset[int]) -> tuple[bool | None, int | None]:
        """Whether the job is on the GPU, and how many other processes are; None where pids say nothing here."""
        listed = self._pids(label, handle)
        if listed is None:
            return None, None
        own = not pids.isdisjoint(listed)
        if not own and in_container() and not any(map(pid_exists, listed)):  # the machine's pids, or none shown at all
            return None, None
        return own, len(set(listed) - pids)


def in_container() -> bool:
    """Whether this process has its own pid namespace, so that the driver may report pids of another one."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino != _INITIAL_NAMESPACE
    except OSError:
        return True


def _reason(error: Any) -> str:
    return _REASONS.get(error.value, f"the driver answers {type(error).__name__}, code {error.value}")
