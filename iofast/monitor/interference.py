"""Interference: how much longer a step takes because the loader works beside it. Pure.

The training thread loses time in two ways. It is ready to run and queued for a processor: /proc counts that. Or it
sleeps within its own work until another thread releases the GIL: stacks show the share of its own work, /proc the share
in which it runs, and the rest is sleep, for the GIL at most as much as the loader's threads in this process run. The
loader is charged with its part of the processors that are used beside the training thread.

A step takes T = 1 - E of the time, with the bounds of the stall E. Without a device the lost time D is a part of it.
With one, a step grows only by what the device idles although it has its batch, N = I - E: of the time T the host loses
D and the device idles N, so max(0, D + N - T) to min(D, N) is lost to the step.
"""

from iofast.monitor.findings import Band, Evidence, Interference, StallBounds
from iofast.monitor.snapshot import Doing, Frame
from iofast.monitor.training import Training

_OWN = (Frame.FORWARD, Frame.BACKWARD, Frame.OPTIMIZER, Frame.TRANSFER, Frame.OTHER)
_SHORTEST = 0.02  # of the time, that a step takes at least
_TAKING = (0.15, 0.05)  # of state R: waking up in next() and taking a batch over, by the share of waits and always


def interference(training: Training, stall: StallBounds | None) -> Interference | None:
    """How much longer a step takes beside the loader; None if no loader works beside it, or it cannot be seen."""
    lost = _lost(training)
    if stall is None or lost is None:
        return None
    short, long, idle = max(_SHORTEST, 1.0 - stall.high), max(_SHORTEST, 1.0 - stall.low), training.idle
    if training.devices:
        if idle is None or training.shared:
            return None
        low = max(0.0, lost.low + max(0.0, idle - stall.high) - long)
        high = min(lost.high, max(0.0, idle - stall.low))
    else:
        low, high = lost.low, lost.high
        short = min(long, max(short, (training.running or 0.0) * (1.0 - _taking(training))))
    low, high = min(low, long / 2), min(high, short - _least(training, short))
    return Interference(min(low / (long - low), high / (short - high)), high / (short - high))


def evidence_of(found: Interference | None, training: Training) -> tuple[Evidence, ...]:
    """What the figure rests on, if a step may be longer by a share worth a notice."""
    if found is None or found.high < training.thresholds.notice or training.queued is None:
        return ()
    queued = f"the training thread is ready to run and has no processor {training.queued:.0%} of the time"
    return (Evidence("main_queued", training.queued, queued), Evidence("interference", found.middle, found.text))


def _least(training: Training, step: float) -> float:
    """Share of time that a step takes on a processor at least; half of its present length if that is unknown."""
    ran = training.running
    if training.devices or ran is None or training.queued is None:
        return step / 2
    return min(step, max(_SHORTEST, (ran - training.queued) * (1.0 - _taking(training))))


def _taking(training: Training) -> float:
    """Share of the training thread's state R that may be within next(), at most."""
    by_wait, always = _TAKING
    return min(1.0, by_wait * training.doing[Doing.QUEUE] + always)


def _lost(training: Training) -> Band | None:
    """Bounds of the share of time that the training thread loses to the loader."""
    loader, queued, running = training.loader_cores, training.queued, training.running
    cores, idle = training.system(lambda one: one.system.cores), training.system(lambda one: one.system.idle_cores)
    if loader is None or queued is None or running is None or cores is None or idle is None:
        return None
    if training.frames(Frame.LOADER_INLINE):
        return None  # it makes batches itself: that is no work beside a step
    others = training.system(lambda one: one.system.other_cores)
    others = max(0.0, cores - idle - training.cpu) if others is None else others
    beside = training.cpu - (running - queued) + others
    charged = min(1.0, loader / beside) if beside > 0 else 0.0
    asleep = max(0.0, (training.frames(*_OWN) or 0.0) - running)  # in its own work, for the GIL at most
    behind_lock = min(training.loader_thread_cores or 0.0, asleep)
    return Band(charged * queued * (1.0 - _taking(training)), charged * queued + behind_lock)
