"""GPU performance monitoring of Hopper and later: means of hardware counters between two samples, without root.

What "busy" cannot say: how many of the SMs work, whether the tensor cores do, how much of the memory's and of the bus's
bandwidth is used. Samples must lie 100 ms apart; one asked for sooner answers what the last two said.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from iofast.monitor.probe.driver import Driver, Unit

_APART_S = 0.105  # 100 ms by the driver's clock, and some for the two clocks
_FIGURE = "SM, tensor and DRAM activity"
_GRAPHICS, _SM, _TENSOR, _DRAM, _TX, _RX = 1, 2, 5, 10, 20, 21  # NVML_GPM_METRIC_...
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GpmFigures:
    """Shares of the time between two samples; bytes a second. `busy`: that anything ran; `sm`: of all SMs."""

    time_s: float  # monotonic, its end
    seconds: float
    busy: float | None
    sm: float | None
    tensor: float | None
    dram: float | None
    rx_bytes_per_s: float | None  # host to device


class Gpm:
    """The samples of one driver's GPUs."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._supported: dict[str, bool] = {}
        self._last: dict[str, tuple[Any, float]] = {}  # by uuid: a sample, and when it was taken
        self._figures: dict[str, GpmFigures] = {}

    def figures(self, unit: Unit) -> GpmFigures | None:
        """Since the call before; None at the first, and where there is no GPM."""
        now = time.monotonic()
        before = self._last.get(unit.uuid)
        if before is not None and now - before[1] < _APART_S:
            return self._figures.get(unit.uuid)
        self._figures.pop(unit.uuid, None)
        sample = self._take(unit) if self._has_it(unit) else None
        if sample is None:
            return None
        self._last[unit.uuid] = sample, time.monotonic()
        if before is None:
            return None
        values = self._between(unit, before[0], sample)
        self._free(before[0])
        if values is None:
            return None
        rx = values.get(_RX)
        self._figures[unit.uuid] = figures = GpmFigures(
            time_s=now,
            seconds=now - before[1],
            busy=_share(values.get(_GRAPHICS)),
            sm=_share(values.get(_SM)),
            tensor=_share(values.get(_TENSOR)),
            dram=_share(values.get(_DRAM)),
            rx_bytes_per_s=None if rx is None else max(0.0, rx) * _MIB,
        )
        return figures

    def forget(self, uuid: str) -> None:
        """The GPU is gone, or the driver was restarted: what was sampled says nothing about what comes."""
        self._figures.pop(uuid, None)
        self._supported.pop(uuid, None)
        if (last := self._last.pop(uuid, None)) is not None:
            self._free(last[0])

    def close(self) -> None:
        """Give the samples back."""
        for uuid in list(self._last):
            self.forget(uuid)

    def _has_it(self, unit: Unit) -> bool:
        if unit.uuid not in self._supported:
            answer = self._driver.ask(unit, _FIGURE, "nvmlGpmQueryDeviceSupport", unit.whole)
            if answer is None:
                return False
            self._supported[unit.uuid] = bool(answer.isSupportedDevice)
            if not answer.isSupportedDevice:
                self._driver.note(unit, _FIGURE, "NVML has them from Hopper on")
        return self._supported[unit.uuid]

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
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        asked.sample1, asked.sample2 = first, second
        wanted = (_GRAPHICS, _SM, _TENSOR, _DRAM, _TX, _RX)
        asked.numMetrics = len(wanted)
        for place, metric in enumerate(wanted):
            asked.metrics[place].metricId = metric
        if self._driver.ask(unit, _FIGURE, "nvmlGpmMetricsGet", asked) is None:
            return None
        answers = [asked.metrics[place] for place in range(len(wanted))]
        return {a.metricId: a.value for a in answers if a.nvmlReturn == 0 and math.isfinite(a.value)}

    def _free(self, sample: Any) -> None:
        try:
            self._driver.nvml.nvmlGpmSampleFree(sample)
        except self._driver.nvml.NVMLError:
            return


def _share(percent: float | None) -> float | None:
    return None if percent is None else min(1.0, max(0.0, percent / 100))
