"""Other programs on a job's cores: how many cores they use, and which of them uses most."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Mapping
from typing import Final

from iofast.monitor.probe.states import Gone, Stat, below, process_ids, read_stat
from iofast.monitor.snapshot import Job

_BUDGET: Final = 0.002  # of one core; a scan of a thousand processes takes 20 to 50 ms
_ALONE: Final = 0.7  # of what others use: if the busiest process uses less, it is named with others
_NAMED: Final = 0.1  # of what others use: if the busiest in sight uses less, as beside a container, none is named


class Neighbours:
    """Processes that are neither the job's, nor its other ranks', nor this monitor's.

    All processes are scanned every `scan_s` seconds, and less often if that costs more than the budget; with 0 at each
    `take`.
    """

    def __init__(self, job: Job, scan_s: float) -> None:
        self._job, self._scan_s = job, scan_s
        self._others: float | None = None
        self._busiest = 0, ""  # its pid, and what it is called
        self._table = self._scan()

    def take(
        self, seconds: float, cores: float, idle: float, allowed: Collection[int]
    ) -> tuple[float | None, str | None]:
        """Cores that others use, and the busiest process, by the last scan; None before the second one.

        In these `seconds`, `idle` of the `cores` that the job may use had nothing to do; `allowed` has their numbers.
        """
        self._used_s += seconds * max(0.0, cores - idle)
        self._seconds += seconds
        if time.monotonic() >= self._due_at:
            self._compare(self._used_s, self._seconds, allowed)
        pid, called = self._busiest
        with contextlib.suppress(Gone):  # it may have ended since the last scan
            if called and read_stat(pid).start_time == self._table[pid].start_time:
                return self._others, called
        return self._others, None

    def _compare(self, used_s: float, seconds: float, allowed: Collection[int]) -> None:
        """Compare the last scan with a new one."""
        before, now = self._table, self._scan()
        self._table = now
        own_before, own = self._own(before), self._own(now)
        # A worker that has ended is counted by its parent, with all that it ever used.
        own_s = sum(_with_children(now[pid]) for pid in own) - sum(_with_children(before[pid]) for pid in own_before)
        self._others = others = max(0.0, used_s - max(0.0, own_s)) / seconds
        rates = {
            pid: (stat.cpu_s - before[pid].cpu_s) / seconds
            for pid, stat in now.items()
            if pid in before and pid not in own and (stat.processor is None or stat.processor in allowed)
        }
        busiest = max(rates, key=rates.__getitem__, default=0)
        rate = rates.get(busiest, 0.0)
        more = ", and others" if rate < _ALONE * others else ""
        named = others and rate >= _NAMED * others
        self._busiest = busiest, f"pid {busiest}, {now[busiest].name}{more}" if named else ""

    def _scan(self) -> dict[int, Stat]:
        self._used_s = self._seconds = 0.0  # since this scan
        before, table = time.thread_time(), {}
        for pid in process_ids():
            with contextlib.suppress(Gone):
                table[pid] = read_stat(pid)
        cost = time.thread_time() - before
        self._due_at = time.monotonic() + (max(self._scan_s, cost / _BUDGET) if self._scan_s else 0.0)
        return table

    def _own(self, table: Mapping[int, Stat]) -> set[int]:
        """The job's processes, those of its launcher if it is one of several ranks, and the monitor's."""
        found = {self._job.pid, os.getpid()} & table.keys()
        if self._job.pid in found and (self._job.world_size or 1) > 1:
            found |= {table[self._job.pid].parent} & table.keys()
        return found | below(table, found)


def _with_children(stat: Stat) -> float:
    return stat.cpu_s + stat.ended_cpu_s
