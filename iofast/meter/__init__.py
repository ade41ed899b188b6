"""How long training waits for its batches, and the page on which other processes can read that.

loop.py      watch() and Meter, for any loader
clock.py     StallClock, inside of one: host times, and what goes onto the page
device.py    the same intervals by a CUDA device's own clock; phase.py: phases of a step, by either clock
stats.py     what was measured
counters.py  counters that threads add to, and what they say as StageStats
page.py      the members of a page (docs/format.md, section 12)
own_page.py  this process's page: a Slot per loader
reading.py   the pages of this user's processes, and where they lie
"""

from iofast.meter.clock import Pass as Pass
from iofast.meter.clock import StallClock as StallClock
from iofast.meter.counters import STAGES as STAGES
from iofast.meter.counters import Cells as Cells
from iofast.meter.counters import StageCounter as StageCounter
from iofast.meter.counters import Stages as Stages
from iofast.meter.counters import StageStats as StageStats
from iofast.meter.loop import Meter as Meter
from iofast.meter.loop import watch as watch
from iofast.meter.own_page import Slot as Slot
from iofast.meter.own_page import close_page as close_page
from iofast.meter.page import LoaderInfo as LoaderInfo
from iofast.meter.page import LoaderReport as LoaderReport
from iofast.meter.page import PhaseTotals as PhaseTotals
from iofast.meter.page import Totals as Totals
from iofast.meter.reading import Page as Page
from iofast.meter.reading import pages as pages
from iofast.meter.reading import read_page as read_page
from iofast.meter.stats import MeterStats as MeterStats
from iofast.meter.stats import Stall as Stall
from iofast.meter.stats import StepPhase as StepPhase

__all__ = [
    "Cells",
    "LoaderInfo",
    "LoaderReport",
    "Meter",
    "MeterStats",
    "Page",
    "Pass",
    "PhaseTotals",
    "STAGES",
    "Slot",
    "StageCounter",
    "StageStats",
    "Stages",
    "Stall",
    "StallClock",
    "StepPhase",
    "Totals",
    "close_page",
    "pages",
    "read_page",
    "watch",
]
