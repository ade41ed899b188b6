"""What to change, best first: one small rule for each piece of advice, each with its figure and its silence.

    situation.py   what rules look at
    loader.py      how a late loader works         data.py       what it is given to read and decode
    transfer.py    batches on their way            compute.py    what the device does
    system.py      the machine, other ranks, validation, checkpoints

Predicted gains are upper bounds: a wait that is removed gives at most 1 / (1 - E), with the lower bound of E. There is
none where training and an exhausted loader share the processors: then what frees them comes first.
"""

from __future__ import annotations

from collections.abc import Sequence

from iofast.monitor.advice import compute, data, loader, system, transfer
from iofast.monitor.advice.situation import Rule, Situation
from iofast.monitor.findings import Advice, Phase, Verdict
from iofast.monitor.phases import phases
from iofast.monitor.snapshot import Snapshot
from iofast.monitor.thresholds import THRESHOLDS, Thresholds
from iofast.monitor.training import Training

__all__ = ["RULES", "advise"]

RULES: tuple[Rule, ...] = loader.COUNTS + data.RULES + loader.RULES + transfer.RULES + compute.RULES + system.RULES


def advise(snapshots: Sequence[Snapshot], verdict: Verdict, thresholds: Thresholds = THRESHOLDS) -> tuple[Advice, ...]:
    """Advice on what `verdict` found in these snapshots: the largest gain first, then what changes no accuracy.

    None is given where the verdict abstains, or where nothing trains.
    """
    if not verdict.bound.sure:
        return ()
    found = phases(snapshots, thresholds)
    counted = [one for one, phase in zip(snapshots, found, strict=True) if phase in (Phase.TRAINING, Phase.BETWEEN)]
    now = Situation(Training(snapshots), Training(counted), verdict, thresholds)
    given = [advice for rule in RULES if (advice := rule(now)) is not None]
    first = data.FREES_CORES if now.shares_cores else frozenset()
    return tuple(
        sorted(given, key=lambda advice: (advice.name not in first, -(advice.gain or 0.0), advice.changes_accuracy))
    )
