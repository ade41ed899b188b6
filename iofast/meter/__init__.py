"""How long training waits for its batches, and the telemetry page on which other processes read it.

loop.py      watch() and Meter, for any loader
clock.py     StallClock, inside a loader: host times, phases of a step, and what goes onto the page
device.py    the same intervals by a CUDA device's clock
stats.py     what was measured
counters.py  counters that threads add to, and their sums as StageStats
traffic.py   this process's requests to object stores
page.py      a page's members and text (docs/format.md, section 12)
page_files.py  the pages of this user's processes, and this process's own, with a Slot per loader
"""

from iofast.meter.clock import Pass, StallClock
from iofast.meter.counters import STAGES, Cells, StageCounter, Stages, StageStats
from iofast.meter.loop import Meter, watch
from iofast.meter.page import LoaderInfo, LoaderReport, Page, PhaseTotals, Totals
from iofast.meter.page_files import Slot, pages
from iofast.meter.stats import MeterStats, Stall, StepPhase
from iofast.meter.traffic import TrafficStats

__all__ = [
    "Cells", "LoaderInfo", "LoaderReport", "Meter", "MeterStats", "Page", "Pass", "PhaseTotals", "STAGES", "Slot",
    "StageCounter", "StageStats", "Stages", "Stall", "StallClock", "StepPhase", "Totals", "TrafficStats", "pages",
    "watch",
]  # fmt: skip
