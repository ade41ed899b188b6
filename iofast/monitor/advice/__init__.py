"""Advice: what to change, best first. A rule is a function that returns one piece of advice, or None.

    loader.py      a late loader
    step.py        what else limits a step

Predicted gains are upper bounds: removing a wait gains at most 1 / (1 - E), with the lower bound of E. No gain is
predicted if training and an exhausted loader share the cores; then advice that frees them comes first.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from iofast.monitor.advice import loader, step
from iofast.monitor.findings import Advice, Bound, Cause, Prediction
from iofast.monitor.situation import Situation

_DECODING = (Cause.WORKERS, Cause.CPU, Cause.TAKEN, Cause.SINGLE)
RULES: dict[Callable[[Situation], Advice | None], tuple[Bound | Cause, ...]] = {  # on which verdicts it speaks
    step.other_programs: (Cause.TAKEN, Bound.COMPUTE),
    loader.first_workers: (Cause.SINGLE,),
    loader.num_workers: (Cause.WORKERS, Cause.STORAGE),
    loader.pack_resize: (*_DECODING, *loader.READING),
    loader.pack: loader.READING,
    loader.fastloader: (*_DECODING, *loader.READING, Cause.COLLATE, Cause.PIN),
    loader.prefetch_factor: (Bound.INPUT,),  # every cause
    loader.persistent_workers: (Cause.EPOCH_START,),
    step.uint8: (Cause.COLLATE, Cause.PIN, Bound.TRANSFER),
    loader.page_cache: (Cause.PAGE_CACHE,),
    loader.stage: (Cause.REMOTE,),
    loader.reading_ahead: (Cause.STORAGE,),
    loader.sender: (Cause.FEEDER,),
    step.slow_rank: (Cause.RANK_SKEW, Bound.COMMUNICATION),
    step.cpu_quota: (Bound.INPUT, Bound.THROTTLED),
    step.pin_memory: (Bound.TRANSFER,),
    step.sync: (Bound.SYNC,),
    step.graphs: (Bound.LAUNCH,),
    step.mixed_precision: (Bound.COMPUTE, Bound.MEMORY),
    step.clocks: (Bound.THROTTLED,),
}
_PACKING = ("pack_resize", "pack")
_PREDICTED = {  # advice: the prediction of what it brings
    "num_workers": "workers",
    "first_workers": "workers",
    "pack_resize": "pack",
    "page_cache": "page_cache",
    "fastloader": "fastloader",
    "other_programs": "others",
}
_FREES_CORES = (*_PACKING, "fastloader")  # advice that takes the loader's work away


def advise(now: Situation, predicted: Sequence[Prediction] = ()) -> tuple[Advice, ...]:
    """Advice on a verdict: the largest gain first, then what changes no accuracy.

    A predicted gain replaces its upper bound.
    """
    bound, gains = now.verdict.bound, {one.name: one.high for one in predicted}
    judged = (bound, now.verdict.cause) if bound is Bound.INPUT else (bound,)
    found = [one for rule, on in RULES.items() if not set(judged).isdisjoint(on) and (one := rule(now)) is not None]
    advice = [replace(one, gain=gains.get(_PREDICTED.get(one.name, ""), one.gain)) for one in found]
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
