"""Work done ahead of its consumer. Knows nothing of images or batches.

jobs.py       results made by threads, delivered in order
threads.py    how these threads start, compute and end
times.py      what they did with their time
auto.py       how many of them, and how far ahead
readahead.py  advice to the kernel on the bytes of coming batches; advice.py gives it
"""

from iofast.prefetch.auto import Auto as Auto
from iofast.prefetch.auto import Limits as Limits
from iofast.prefetch.auto import Setting as Setting
from iofast.prefetch.auto import most_depth as most_depth
from iofast.prefetch.jobs import Prefetch as Prefetch
from iofast.prefetch.jobs import PrefetchJob as PrefetchJob
from iofast.prefetch.readahead import Readahead as Readahead
from iofast.prefetch.times import Times as Times

__all__ = ["Auto", "Limits", "Prefetch", "PrefetchJob", "Readahead", "Setting", "Times", "most_depth"]
