"""What loaders are doing: counters for this process, and a page of them that other processes can read.

counters.py   counters that threads add to, and what they say as StageStats
page.py       the members of a page (docs/format.md, section 12)
folder.py     the private folder of pages, and which process a page belongs to
publish.py    this process's page: a Slot per loader
reading.py    reading the pages of this user
"""

from iofast.telemetry.counters import STAGES as STAGES
from iofast.telemetry.counters import Cells as Cells
from iofast.telemetry.counters import StageCounter as StageCounter
from iofast.telemetry.counters import Stages as Stages
from iofast.telemetry.counters import StageStats as StageStats
from iofast.telemetry.page import LoaderInfo as LoaderInfo
from iofast.telemetry.page import LoaderReport as LoaderReport
from iofast.telemetry.page import PhaseTotals as PhaseTotals
from iofast.telemetry.page import Totals as Totals
from iofast.telemetry.publish import Slot as Slot
from iofast.telemetry.publish import close_page as close_page
from iofast.telemetry.reading import Page as Page
from iofast.telemetry.reading import pages as pages
from iofast.telemetry.reading import read_page as read_page

__all__ = [
    "STAGES",
    "Cells",
    "StageCounter",
    "Stages",
    "StageStats",
    "LoaderInfo",
    "Totals",
    "LoaderReport",
    "PhaseTotals",
    "Slot",
    "close_page",
    "Page",
    "pages",
    "read_page",
]
