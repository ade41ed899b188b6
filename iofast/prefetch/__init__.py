"""Work done ahead of its consumer. Knows nothing of images or batches.

jobs.py       results made by threads, delivered in order
threads.py    how these threads start, compute and end; consumers in daemon threads at exit
times.py      how threads and consumer spend their time
auto.py       how many threads, and how far ahead
readahead.py  advice to the kernel on the bytes of coming batches
stored_readahead.py  blocks of coming batches from an object store
"""

from iofast.prefetch.auto import Auto, Limits, Setting, most_depth
from iofast.prefetch.jobs import Prefetch, PrefetchJob
from iofast.prefetch.readahead import Readahead
from iofast.prefetch.stored_readahead import StoredReadahead
from iofast.prefetch.times import PrefetchTimes

__all__ = [
    "Auto", "Limits", "Prefetch", "PrefetchJob", "PrefetchTimes", "Readahead", "Setting", "StoredReadahead",
    "most_depth",
]  # fmt: skip
