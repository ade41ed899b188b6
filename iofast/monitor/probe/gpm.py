"""GPU performance monitoring of Hopper and later: means of hardware counters between two samples, without root.

These say more than "busy": how many of the SMs work, whether the tensor cores do, and how much of the memory's and the
bus's bandwidth is used. Samples must lie 100 ms apart.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from typing import Any

from iofast.monitor.probe.driver import Driver, Unit

_APART_S = 0.105  # 100 ms by the driver's clock, and some for the two clocks
_FIGURE = "SM, tensor and DRAM activity"
_GRAPHICS, _SM, _TENSOR, _DRAM, _RX = _METRICS = (1, 2, 5, 10, 21)  # NVML_GPM_METRIC_...
_MIB = 1 << 20


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
            answer = self._driver.ask(unit, _FIGURE, "nvmlGpmQueryDeviceSupport", unit.whole)
            if answer is not None:
                self._supported = bool(answer.isSupportedDevice)
                self._driver.note(unit, _FIGURE, None if self._supported else "NVML has them from Hopper on")
        return bool(self._supported)

    def _take(self, unit: Unit) -> Any:
        sample = self._driver.ask(unit, _FIGURE, "nvmlGpmSampleAlloc")
        if sample is None:
            return None
        if unit.instance is None:
            taken = self._driver.ask(unit, _FIGURE, "nvmlGpmSampleGet", unit.handle, sample)
        else:
            taken = self._driver.ask(unit, _FIGURE, "nvmlGpmMigSampleGet", unit.whole, unit.instance, sample)
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
        if self._driver.ask(unit, _FIGURE, "nvmlGpmMetricsGet", request) is None:
            return None
        answers = request.metrics[: len(_METRICS)]
        return {each.metricId: each.value for each in answers if each.nvmlReturn == 0 and math.isfinite(each.value)}

    def _free(self, sample: Any) -> None:
        with contextlib.suppress(self._driver.nvml.NVMLError):
            self._driver.nvml.nvmlGpmSampleFree(sample)


def _share(percent: float | None) -> float | None:
    return None if percent is None else min(1.0, max(0.0, percent / 100))
