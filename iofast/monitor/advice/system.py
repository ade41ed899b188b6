"""Advice on the machine, on other ranks, and on validation and checkpoints."""

from __future__ import annotations

from iofast.monitor.advice.rule import EVERY, INPUT, Match, Rule, on
from iofast.monitor.advice.situation import Situation, gain
from iofast.monitor.findings import Bound, Cause, Phase

_CLOCKS = {  # by reason, the most urgent first
    "hardware": "nvidia-smi -q -d PERFORMANCE  # and look at power supply and air",
    "thermal": "nvidia-smi -q -d TEMPERATURE  # and look at fans and air",
    "power": "nvidia-smi -q -d POWER  # the limit; nvidia-smi -pl WATTS raises it, as root",
}


def _quota(now: Situation) -> Match | None:
    waited = now.training.throttled
    if waited < now.thresholds.quota:
        return None
    cores = now.training.system(lambda one: one.system.cores) or 1.0
    return Match(waited, now.wait_gain if now.caused_by(Cause.CPU) else None, {"cores": cores})


def _others(now: Situation) -> Match | None:
    """Training on the CPU has this cause, too."""
    taken = now.training.taken
    if taken is None or now.verdict.cause is not Cause.TAKEN:
        return None
    busiest = now.training.snapshots[-1].system.busiest
    change = "run it on cores of its own: taskset -c, docker run --cpuset-cpus, srun --exclusive"
    if busiest is not None:
        pid = busiest.split()[1].rstrip(",")
        change = f"taskset -acp 0 {pid}  # keeps it on one core; or stop it, or train on other cores"
    who = "" if busiest is None else f" ({busiest})"
    return Match(taken, words={"cores": now.cores * now.ranks, "who": who, "change": change})


def _numa(now: Situation) -> Match | None:
    """Not on one node, and not if most processes run on the device's node."""
    last = now.last
    if last is None or (last.system.numa_nodes or 1) < 2:
        return None
    nodes = {device.numa_node for device in last.devices if device.own and device.numa_node is not None}
    where = [one.numa_node for one in last.processes if one.role in ("main", "worker") and one.numa_node is not None]
    away = [node for node in where if node not in nodes]
    if len(nodes) != 1 or not where or len(away) <= 0.5 * len(where):
        return None
    return Match(len(away) / len(where), words={"away": len(away), "all": len(where), "node": min(nodes)})


def _clocks(now: Situation) -> Match | None:
    devices = now.training.devices
    slowed = [device for device in devices if device.throttle_reasons]
    reasons = sorted({reason for device in slowed for reason in device.throttle_reasons})
    if not reasons:
        return None
    change = next((change for reason, change in _CLOCKS.items() if reason in reasons), "nvidia-smi -q -d PERFORMANCE")
    return Match(len(slowed) / len(devices), words={"reasons": ", ".join(reasons), "change": change})


def _pause(now: Situation, phase: Phase) -> Match | None:
    """A phase that takes 10 % of the time; half of that can be saved."""
    share = now.phase(phase)
    return None if share < now.thresholds.gap else Match(share, gain(0.5 * share))


def _late_rank(now: Situation) -> Match | None:
    late = next((one for one in now.verdict.evidence if one.name == "rank_gap"), None)
    return None if late is None else Match(late.value, words={"text": f"{late.text[0].upper()}{late.text[1:]}"})


def _communication(now: Situation) -> Match | None:
    """Not if one rank is late with its data: that rank needs the advice."""
    if _late_rank(now) is not None:
        return None
    _, share = now.figure("communication")
    return Match(share, words={"share": "" if share is None else f" {share:.0%} of the time"})


OTHERS = Rule(
    name="other_programs",
    on=on(Cause.TAKEN, Bound.COMPUTE),
    match=_others,
    text="Other programs use {value:.1f} of {cores:g} cores{who}, and training gets what they leave.",
    change="{change}",
    trigger="other_cores",
)
SYSTEM_RULES = (
    OTHERS,
    Rule(
        name="cpu_quota",
        on=INPUT | on(Bound.THROTTLED),
        match=_quota,
        text="The cgroup's quota of {cores:g} cores kept threads waiting {value:.0%} of the time.",
        change="raise the container's limit (docker update --cpus N ID; resources.limits.cpu), or use fewer workers",
        trigger="throttled",
    ),
    Rule(
        name="numa",
        on=INPUT | on(Bound.TRANSFER),
        match=_numa,
        text="{away} of {all} processes run on another NUMA node than their device's, which is {node}.",
        change="numactl --cpunodebind={node} --membind={node} python ...",
        trigger="numa",
        risk="fewer cores for the workers",
    ),
    Rule(
        name="clocks",
        on=on(Bound.THROTTLED),
        match=_clocks,
        text="The device runs below its clock {value:.0%} of the time: {reasons}.",
        change="{change}",
        trigger="clocks",
    ),
    Rule(
        name="validation",
        on=EVERY,
        match=lambda now: _pause(now, Phase.VALIDATION),
        text="Validation takes {value:.0%} of the time.",
        change="validate every second epoch, or on a fixed tenth of the set, under torch.inference_mode()",
        trigger="validation",
    ),
    Rule(
        name="checkpoints",
        on=EVERY,
        match=lambda now: _pause(now, Phase.CHECKPOINT),
        text="Writing checkpoints takes {value:.0%} of the time.",
        change="torch.distributed.checkpoint.async_save(...), or save half as often",
        trigger="checkpoint",
    ),
    Rule(
        name="other_rank",
        on=on(Bound.COMMUNICATION),
        match=_late_rank,
        text="{text}.",
        change="iofast monitor --pid PID  # of that rank",
        trigger="rank_gap",
    ),
    Rule(
        name="communication",
        on=on(Bound.COMMUNICATION),
        match=_communication,
        text="The training thread waits{share} for other ranks.",
        change="with model.no_sync(): ... while gradients accumulate; DistributedDataParallel rather than DataParallel",
        trigger="communication",
    ),
)
