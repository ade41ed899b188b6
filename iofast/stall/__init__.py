"""How long training waits for its batches: for any loader (`watch`), and inside of one (`StallClock`).

stats.py    what was measured
phase.py    what `meter.step` returns, by the host's clock and by a device's
clock.py    StallClock: host times, and what goes into the telemetry page
device.py   the same intervals on a CUDA device's own clock
meter.py    watch() and Meter
"""

from iofast.stall.clock import Pass as Pass
from iofast.stall.clock import StallClock as StallClock
from iofast.stall.meter import Meter as Meter
from iofast.stall.meter import watch as watch
from iofast.stall.stats import MeterStats as MeterStats
from iofast.stall.stats import Stall as Stall
from iofast.stall.stats import StepPhase as StepPhase

__all__ = ["watch", "Meter", "MeterStats", "Stall", "Phase", "StallClock", "Pass"]
