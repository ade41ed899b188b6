"""Advice: what to change, best first. Each rule is a row in a table.

    rule.py        what a rule is      situation.py   the facts that rules look at
    loader.py      how a late loader works
    data.py        what it reads and decodes
    computing.py   copies to the device, and keeping it at work
    system.py      the machine, other ranks, validation, checkpoints

Predicted gains are upper bounds: removing a wait gains at most 1 / (1 - E), with the lower bound of E. No gain is
predicted if training and an exhausted loader share the cores; then advice that frees them comes first.
"""

from __future__ import annotations

from iofast.monitor.advice.computing import COMPUTE_RULES, TRANSFER_RULES
from iofast.monitor.advice.data import DATA_RULES, FAST_LOADER, FREES_CORES, PACKING
from iofast.monitor.advice.loader import LOADER_RULES, WORKER_RULES
from iofast.monitor.advice.situation import Situation
from iofast.monitor.advice.system import OTHERS, SYSTEM_RULES
from iofast.monitor.findings import Advice, Bound, Verdict
from iofast.monitor.training import Training

RULES = WORKER_RULES + DATA_RULES + LOADER_RULES + TRANSFER_RULES + COMPUTE_RULES + SYSTEM_RULES


def advise(every: Training, training: Training, verdict: Verdict) -> tuple[Advice, ...]:
    """Advice on a verdict: the largest gain first, then what changes no accuracy; none on unknown, idle and stalled.

    `every` has all intervals, `training` those that the verdict rests on.
    """
    if not verdict.bound.sure or verdict.bound is Bound.STALLED:
        return ()
    now = Situation(every, training, verdict)
    advice = [one for rule in RULES if (one := rule.advice(now)) is not None]
    first = FREES_CORES if now.shares_cores else frozenset()
    advice.sort(
        key=lambda one: (one.name != OTHERS.name, one.name not in first, -(one.gain or 0.0), one.changes_accuracy)
    )
    # A loader of what is packed comes behind the packing, in the place of the better of the two.
    pair = [one for one in advice if one.name in (*PACKING, FAST_LOADER.name)]
    if len(pair) > 1:
        at = advice.index(pair[0])
        advice = [one for one in advice if one not in pair]
        advice[at:at] = sorted(pair, key=lambda one: one.name == FAST_LOADER.name)
    return tuple(advice)
