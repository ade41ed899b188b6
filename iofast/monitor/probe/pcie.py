"""What crosses the bus to a GPU, by the driver's byte counter, and what the bus could carry."""

from __future__ import annotations

import time
from dataclasses import dataclass

from iofast.monitor.probe.driver import Driver, Unit

_RX_FIELD = 198  # NVML_FI_DEV_PCIE_COUNT_RX_BYTES: "may wrap", where is not said
_UNSIGNED_INT = 1  # NVML_VALUE_TYPE_UNSIGNED_INT
_APART_S = 0.1
_WRAP = 1 << 32
# bytes a second of one lane in one direction, after the line code: 8b/10b in the first two generations, 128b/130b
# from the third, 242/256 with PAM4 in the sixth
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}


@dataclass
class _Counter:
    time_s: float
    value: int
    wide: bool  # has been seen above 32 bits
    rate: float | None = None


class Pcie:
    """The counters of one driver's GPUs. A MIG instance is answered for with its whole GPU."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._counters: dict[str, _Counter] = {}

    def link(self, unit: Unit) -> float | None:
        """What the link can carry in one direction, bytes a second.

        By the generation that GPU and slot can do, since a link that idles steps down to the first; and by the lanes
        that are connected.
        """
        generation = self._driver.ask(unit, "PCIe link", "nvmlDeviceGetMaxPcieLinkGeneration", unit.whole)
        width = self._driver.ask(unit, "PCIe link", "nvmlDeviceGetCurrPcieLinkWidth", unit.whole)
        lane = _LANE.get(generation)
        return None if lane is None or not width else lane * width

    def received(self, unit: Unit, link: float | None) -> float | None:
        """Bytes a second from the host since the call before, or since the one before that, where it was just now."""
        before = self._counters.get(unit.uuid)
        now = time.monotonic()
        if before is not None and now - before.time_s < _APART_S:
            return before.rate
        read = self._read(unit)
        if read is None:
            self._counters.pop(unit.uuid, None)
            return None
        value, narrow = read
        wide = not narrow and (value >= _WRAP or (before is not None and before.wide))
        self._counters[unit.uuid] = counter = _Counter(now, value, wide)
        if before is None:
            return None
        seconds = now - before.time_s
        if not wide and (link is None or link * seconds >= _WRAP):
            # It may have gone round more than once. Below 2^32 nothing tells a counter of 64 bits from one of 32
            self._driver.note(unit, "PCIe bytes", "its counter is too short for a second, or has not passed 4 GB yet")
            return None
        moved = value - before.value
        if moved < 0 and not wide:
            moved += _WRAP
        if moved < 0 or (link is not None and moved > 2 * link * seconds):  # it began again: a reset
            return None
        counter.rate = moved / seconds
        return counter.rate

    def forget(self, uuid: str) -> None:
        """The GPU is gone: its counter may begin anew."""
        self._counters.pop(uuid, None)

    def _read(self, unit: Unit) -> tuple[int, bool] | None:
        fields = self._driver.ask(unit, "PCIe bytes", "nvmlDeviceGetFieldValues", unit.whole, [_RX_FIELD])
        if fields is None:
            return None
        if fields[0].nvmlReturn != 0:
            self._driver.note(unit, "PCIe bytes", "not counted by this GPU")
            return None
        narrow = fields[0].valueType == _UNSIGNED_INT
        return int(fields[0].value.uiVal if narrow else fields[0].value.ullVal), narrow
