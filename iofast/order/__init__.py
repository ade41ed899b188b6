"""Orders of samples. A mode, bound to a dataset and a seed, is an order: it gives the sample at any position.

    from iofast.order import Balanced, Blocks, Mixed, Population, Repeated, Schedule, Shuffled

    order = Shuffled().bind(Population(1_281_167), seed=0)
    order.indices(epoch=3, positions=np.arange(256))     # int64: the samples at these positions of the epoch
    order.describe()                                     # for a resume: {"mode": "shuffled", "count": 1281167, ...}

    Blocks(block=64, window=64)        # for slow disks and remote shards
    Balanced()                         # every class equally often
    Weighted(weights)                  # with replacement
    Repeated(3)                        # each sample three times in a row, also Repeated(3, Blocks())
    Mixed([0.8, 0.2])                  # two datasets opened as one
    Buckets([(224, 224), (192, 256)])  # batches of similar aspect ratios
    Grouped(64)                        # fixed ranges of samples for each node
    Sampled(sampler)                   # a torch sampler, also an endless one

The sample at position p of epoch e is a pure function of (seed, e, p). Nothing is shuffled in memory, so any rank,
worker or resumed run computes any part of any epoch by itself. Start-up and memory do not grow with the dataset, unless
an order needs a weight, a label or a size of each sample. A `Schedule` deals positions to batches and ranks.
"""

from iofast.arguments import MAX_SEED
from iofast.order.base import Mode, Order, Population
from iofast.order.blocks import Blocks, Grouped
from iofast.order.buckets import Buckets, nearest
from iofast.order.cycles import Balanced, Mixed
from iofast.order.orders import Repeated, Sequential, Shuffled, Weighted
from iofast.order.permutation import MAX_SAMPLES
from iofast.order.sampled import Sampled
from iofast.order.schedule import Schedule

__all__ = [
    "MAX_SAMPLES", "MAX_SEED", "Balanced", "Blocks", "Buckets", "Grouped", "Mixed", "Mode", "Order", "Population",
    "Repeated", "Sampled", "Schedule", "Sequential", "Shuffled", "Weighted", "nearest",
]  # fmt: skip
