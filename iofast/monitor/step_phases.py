"""Phases of a step: as the program names them (`meter.step`), else as stacks show them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import fsum
from typing import NamedTuple

from iofast.monitor.findings import Evidence
from iofast.monitor.snapshot import Frame, LoaderFigures
from iofast.monitor.training import FEW, Training

_MOST = 4  # named in the evidence


class StepPhases(NamedTuple):
    """Phases of `meter.step` of one loader: shares of a step, the largest first; {} without phases."""

    shares: dict[str, float]
    on_device: bool  # timed by the device's clock


def step_phases(loaders: Iterable[LoaderFigures]) -> StepPhases:
    """Of several loaders with phases, the one whose steps took most of the time counts."""
    reports = defaultdict[str, list[LoaderFigures]](list)
    for one in loaders:
        if one.phases and one.step_s:
            reports[one.name].append(one)
    times = {name: fsum((one.step_s or 0.0) * one.batches for one in each) for name, each in reports.items()}
    if not times:
        return StepPhases({}, on_device=False)
    longest = max(sorted(times), key=times.__getitem__)
    parts, time_s = reports[longest], times[longest]
    names = {name for one in parts for name in one.phases}
    shares = {name: fsum(one.phases.get(name, 0.0) for one in parts) / time_s for name in names}
    order = sorted(shares.items(), key=lambda phase: (-phase[1], phase[0]))
    return StepPhases(dict(order), on_device=any(one.phases_on_device for one in parts))


def phases_of(training: Training) -> Evidence | None:
    """Time by phase of a step as evidence. Stacks show none of a device's time."""
    shares, on_device = step_phases(training.loaders)
    named = [(name, share) for name, share in shares.items() if share >= 0.005][:_MOST]
    if named:
        (first, most), *others = named
        rest = "".join(f", {name} {share:.0%}" for name, share in others)
        clock = " (by the device's clock)" if on_device else ""
        return Evidence("step_phases", most, f"{first} takes {most:.0%} of a step{rest}{clock}")
    frames = (Frame.FORWARD, Frame.BACKWARD, Frame.OPTIMIZER)
    seen = sorted(((training.frames(frame) or 0.0, frame.value) for frame in frames), reverse=True)
    seen = [(share, name) for share, name in seen if share >= training.thresholds.notice]
    if not seen or training.frame_looks < FEW or training.devices:
        return None
    text = ", ".join(f"{name} in {share:.0%}" for share, name in seen)
    text = f"the training thread is in {text} of {training.frame_looks} stack samples"
    return Evidence("stack_phases", seen[0][0], text)
