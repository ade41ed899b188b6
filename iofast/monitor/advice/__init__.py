"""Advice: what to change, best first.

    situation.py   the facts that rules look at, and the gain of removing a wait
    loader.py      when advice on a late loader applies
    table.py       the table: each rule with its condition and its texts

Predicted gains are upper bounds: removing a wait gains at most 1 / (1 - E), with the lower bound of E. No gain is
predicted if training and an exhausted loader share the cores; then advice that frees them comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from iofast.monitor.advice.situation import Situation
from iofast.monitor.advice.table import RULES
from iofast.monitor.findings import Advice, Bound, Prediction, Verdict
from iofast.monitor.training import Training

_PACKING = ("pack_resize", "pack")
_PREDICTED = {  # advice: the prediction of what it brings
    "num_workers": "workers",
    "first_workers": "workers",
    "pack_resize": "pack",
    "page_cache": "page_cache",
    "fastloader": "fastloader",
}
_FREES_CORES = (*_PACKING, "fastloader")  # advice that takes the loader's work away


def advise(
    every: Training, training: Training, verdict: Verdict, predicted: Sequence[Prediction] = ()
) -> tuple[Advice, ...]:
    """Advice on a verdict: the largest gain first, then what changes no accuracy; none on unknown, idle and stalled.

    `every` has all intervals, `training` those that the verdict rests on. A predicted gain replaces its upper bound.
    """
    if not verdict.bound.sure or verdict.bound is Bound.STALLED:
        return ()
    now = Situation(every, training, verdict)
    advice = [_gaining(one, predicted) for rule in RULES if (one := rule.advice(now)) is not None]
    first = _FREES_CORES if now.shares_cores else ()
    advice.sort(
        key=lambda one: (one.name != "other_programs", one.name not in first, -(one.gain or 0.0), one.changes_accuracy)
    )
    # A loader of what is packed comes behind the packing, in the place of the better of the two.
    pair = [one for one in advice if one.name in _FREES_CORES]
    if len(pair) > 1:
        at = advice.index(pair[0])
        advice = [one for one in advice if one not in pair]
        advice[at:at] = sorted(pair, key=lambda one: one.name not in _PACKING)
    return tuple(advice)


def _gaining(advice: Advice, predicted: Sequence[Prediction]) -> Advice:
    """Return the advice with the gain that was predicted for it, if there is one."""
    found = next((one for one in predicted if one.name == _PREDICTED.get(advice.name)), None)
    return advice if found is None else replace(advice, gain=found.high)
