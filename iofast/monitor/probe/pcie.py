"""What crosses the bus to a GPU, by the driver's byte counter, and what the bus can carry."""

from __future__ import annotations

import time
from typing import NamedTuple

from iofast.monitor.probe.driver import Driver, Unit

_FIGURE = "PCIe bytes"
_RX_FIELD = 198  # NVML_FI_DEV_PCIE_COUNT_RX_BYTES: "may wrap", without saying where
_UNSIGNED_INT = 1  # NVML_VALUE_TYPE_UNSIGNED_INT
_APART_S = 0.1
_WRAP = 1 << 32
# bytes a second of one lane in one direction, after the line code: 8b/10b in the first two generations, 128b/130b
# from the third, 242/256 with PAM4 in the sixth
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}


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
            self._driver.note(unit, _FIGURE, "its counter is too short for a second, or has not passed 4 GB yet")
            return None
        moved = now.value - before.value
        if moved < 0 and not now.wide:
            moved += _WRAP
        if moved < 0 or (link is not None and moved > 2 * link * seconds):  # reset
            return None
        return moved / seconds

    def _read(self, unit: Unit, now: float) -> _Count | None:
        fields = self._driver.ask(unit, _FIGURE, "nvmlDeviceGetFieldValues", unit.whole, [_RX_FIELD])
        if fields is None:
            return None
        if fields[0].nvmlReturn != 0:
            self._driver.note(unit, _FIGURE, "not counted by this GPU")
            return None
        if fields[0].valueType == _UNSIGNED_INT:
            return _Count(now, int(fields[0].value.uiVal), wide=False)
        value = int(fields[0].value.ullVal)
        return _Count(now, value, wide=value >= _WRAP or (self._last is not None and self._last.wide))
