"""What the driver counts of a GPU between two calls: hardware activity, and bytes across the bus.

GPM, GPU performance monitoring of Hopper and later, needs no root. It says more than "busy": how many of the SMs work,
whether the tensor cores do, and how much of the memory's and the bus's bandwidth is used.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from iofast.monitor.probe.driver import Driver, Unit

_APART_S = 0.105  # GPM samples need 100 ms by the driver's clock, and some for the two clocks
_ACTIVITY = "SM, tensor and DRAM activity"
_GRAPHICS, _SM, _TENSOR, _DRAM, _RX = _METRICS = (1, 2, 5, 10, 21)  # NVML_GPM_METRIC_...
_MIB = 1 << 20
_BYTES = "PCIe bytes"
_RX_FIELD = 198  # NVML_FI_DEV_PCIE_COUNT_RX_BYTES: "may wrap", without saying where
_UNSIGNED_INT = 1  # NVML_VALUE_TYPE_UNSIGNED_INT
_WRAP = 1 << 32
# bytes a second of one lane in one direction, after the line code: 8b/10b in the first two generations, 128b/130b
# from the third, 242/256 with PAM4 in the sixth
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}


@dataclass(frozen=True, slots=True)
class GpmFigures:
    """Shares of the time between two samples; bytes a second. `busy`: anything ran; `sm`: of all SMs."""

    time_s: float = 0.0  # monotonic, its end
    seconds: float = 0.0
    busy: float | None = None
    sm: float | None = None
    tensor: float | None = None
    dram: float | None = None
    rx_bytes_per_s: float | None = None  # host to device


class Gpm:
    """The samples of one GPU or MIG instance."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._supported: bool | None = None
        self._last: tuple[Any, float] | None = None  # a sample, and its time
        self._figures = GpmFigures()

    def figures(self, unit: Unit) -> GpmFigures:
        """Means since the previous call; unknown at the first call, and without GPM. Repeated if called too soon."""
        now = time.monotonic()
        if self._last is not None and now - self._last[1] < _APART_S:
            return self._figures
        self._figures = GpmFigures()
        sample = self._take(unit) if self._is_supported(unit) else None
        if sample is None:
            return self._figures
        before, self._last = self._last, (sample, time.monotonic())
        if before is not None:
            values = self._between(unit, before[0], sample)
            self._free(before[0])
            if values is not None:
                busy, sm, tensor, dram = (_share(values.get(name)) for name in (_GRAPHICS, _SM, _TENSOR, _DRAM))
                received = None if _RX not in values else max(0.0, values[_RX]) * _MIB
                self._figures = GpmFigures(now, now - before[1], busy, sm, tensor, dram, received)
        return self._figures

    def close(self) -> None:
        """Free the sample."""
        if self._last is not None:
            self._free(self._last[0])
            self._last = None

    def _is_supported(self, unit: Unit) -> bool:
        if self._supported is None:
            answer = self._driver.ask(unit, _ACTIVITY, "nvmlGpmQueryDeviceSupport", unit.whole)
            if answer is not None:
                self._supported = bool(answer.isSupportedDevice)
                self._driver.note(unit, _ACTIVITY, None if self._supported else "NVML has them from Hopper on")
        return bool(self._supported)

    def _take(self, unit: Unit) -> Any:
        sample = self._driver.ask(unit, _ACTIVITY, "nvmlGpmSampleAlloc")
        if sample is None:
            return None
        if unit.instance is None:
            taken = self._driver.ask(unit, _ACTIVITY, "nvmlGpmSampleGet", unit.handle, sample)
        else:
            taken = self._driver.ask(unit, _ACTIVITY, "nvmlGpmMigSampleGet", unit.whole, unit.instance, sample)
        if taken is None:
            self._free(sample)
        return taken

    def _between(self, unit: Unit, first: Any, second: Any) -> dict[int, float] | None:
        nvml = self._driver.nvml
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.sample1, request.sample2 = first, second
        request.numMetrics = len(_METRICS)
        for metric, number in zip(request.metrics, _METRICS, strict=False):
            metric.metricId = number
        if self._driver.ask(unit, _ACTIVITY, "nvmlGpmMetricsGet", request) is None:
            return None
        answers = request.metrics[: len(_METRICS)]
        return {each.metricId: each.value for each in answers if each.nvmlReturn == 0 and math.isfinite(each.value)}

    def _free(self, sample: Any) -> None:
        with contextlib.suppress(self._driver.nvml.NVMLError):
            self._driver.nvml.nvmlGpmSampleFree(sample)


class _Count(NamedTuple):
    time_s: float
    value: int
    wide: bool  # it has been above 32 bits


class Pcie:
    """The counter of one GPU. A MIG instance has that of its whole GPU."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._last: _Count | None = None
        self._rate: float | None = None

    def link(self, unit: Unit) -> float | None:
        """Bytes a second that the link can carry in one direction.

        By the lanes that are connected and the generation that GPU and slot support, as an idle link steps down.
        """
        generation = self._driver.ask(unit, "PCIe link", "nvmlDeviceGetMaxPcieLinkGeneration", unit.whole)
        width = self._driver.ask(unit, "PCIe link", "nvmlDeviceGetCurrPcieLinkWidth", unit.whole)
        lane = _LANE.get(generation)
        return None if lane is None or not width else lane * width

    def received(self, unit: Unit, link: float | None) -> float | None:
        """Bytes a second from the host since the previous call. Repeated if called too soon."""
        now = time.monotonic()
        if self._last is None or now - self._last.time_s >= _APART_S:
            before, self._last = self._last, self._read(unit, now)
            self._rate = None
            if before is not None and self._last is not None:
                self._rate = self._between(unit, before, self._last, link)
        return self._rate

    def _between(self, unit: Unit, before: _Count, now: _Count, link: float | None) -> float | None:
        seconds = now.time_s - before.time_s
        if not now.wide and (link is None or link * seconds >= _WRAP):
            # It may have wrapped more than once. Below 2^32 a counter of 64 bits looks like one of 32 bits.
            self._driver.note(unit, _BYTES, "its counter is too short for a second, or has not passed 4 GB yet")
            return None
        moved = now.value - before.value
        if moved < 0 and not now.wide:
            moved += _WRAP
        if moved < 0 or (link is not None and moved > 2 * link * seconds):  # reset
            return None
        return moved / seconds

    def _read(self, unit: Unit, now: float) -> _Count | None:
        fields = self._driver.ask(unit, _BYTES, "nvmlDeviceGetFieldValues", unit.whole, [_RX_FIELD])
        if fields is None:
            return None
        if fields[0].nvmlReturn != 0:
            self._driver.note(unit, _BYTES, "not counted by this GPU")
            return None
        if fields[0].valueType == _UNSIGNED_INT:
            return _Count(now, int(fields[0].value.uiVal), wide=False)
        value = int(fields[0].value.ullVal)
        return _Count(now, value, wide=value >= _WRAP or (self._last is not None and self._last.wide))


def _share(percent: float | None) -> float | None:
    return None if percent is None else min(1.0, max(0.0, percent / 100))
