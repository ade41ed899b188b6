"""Advice: what to change, best first. Each rule is a row in a table.

    rule.py        what a rule is      situation.py   the facts that rules look at
    loader.py      how a late loader works
    data.py        what it reads and decodes
    device.py      copies to the device, and keeping it at work
    system.py      the machine, other ranks, validation, checkpoints

Predicted gains are upper bounds: removing a wait gains at most 1 / (1 - E), with the lower bound of E. No gain is
predicted if training and an exhausted loader share the cores; then advice that frees them comes first.
"""

from __future__ import annotations

from iofast.monitor.advice.computing import COMPUTE_RULES, TRANSFER_RULES
from iofast.monitor.advice.data import DATA_RULES, FREES_CORES
from iofast.monitor.advice.loader import LOADER_RULES, WORKER_RULES
from iofast.monitor.advice.situation import Situation
from iofast.monitor.advice.system import SYSTEM_RULES
from iofast.monitor.findings import Advice, Verdict
from iofast.monitor.training import Training

RULES = WORKER_RULES + DATA_RULES + LOADER_RULES + TRANSFER_RULES + COMPUTE_RULES + SYSTEM_RULES


def advise(every: Training, training: Training, verdict: Verdict) -> tuple[Advice, ...]:
    """Advice on a verdict: the largest gain first, then what changes no accuracy; none on unknown and idle.

    `every` has all intervals, `training` those that the verdict rests on.
    """
    if not verdict.bound.sure:
        return ()
    now = Situation(every, training, verdict)
    advice = [one for rule in RULES if (one := rule.advice(now)) is not None]
    first = FREES_CORES if now.shares_cores else frozenset()
    return tuple(sorted(advice, key=lambda one: (one.name not in first, -(one.gain or 0.0), one.changes_accuracy)))
