"""Advice on the machine, on other ranks, and on what a training does beside training."""

from __future__ import annotations

from iofast.monitor.advice.situation import Situation, gain
from iofast.monitor.findings import Advice, Bound, Cause, Phase

_CLOCKS = {
    "power": "nvidia-smi -q -d POWER  # the limit; nvidia-smi -pl WATTS raises it, as root",
    "thermal": "nvidia-smi -q -d TEMPERATURE  # and look at fans and air",
    "hardware": "nvidia-smi -q -d PERFORMANCE  # and look at power supply and air",
}


def quota(now: Situation) -> Advice | None:
    """Silent where the quota does not bind."""
    waits = [
        one.system.throttled_s / one.seconds for one in now.training.snapshots if one.system.throttled_s is not None
    ]
    waited = sum(sorted(waits)) / len(waits) if waits else 0.0
    if waited < now.thresholds.quota or not (now.is_input() or now.verdict.bound is Bound.THROTTLED):
        return None
    cores = now.training.system(lambda one: one.system.cores) or 1.0
    return Advice(
        name="cpu_quota",
        text=f"The cgroup's quota of {cores:g} cores kept threads waiting {min(1.0, waited):.0%} of the time.",
        change="raise the container's limit (docker update --cpus N ID; resources.limits.cpu), or use fewer workers",
        trigger="throttled",
        value=min(1.0, waited),
        gain=gain(now.low) if now.is_input(Cause.CPU) else None,
    )


def numa(now: Situation) -> Advice | None:
    """Silent on one node, and where workers run on their device's."""
    last = now.last
    if last is None or (last.system.numa_nodes or 1) < 2 or not (now.is_input() or now.verdict.bound is Bound.TRANSFER):
        return None
    nodes = {device.numa_node for device in last.devices if device.own and device.numa_node is not None}
    where = [one.numa_node for one in last.processes if one.role in ("main", "worker") and one.numa_node is not None]
    away = [node for node in where if node not in nodes]
    if len(nodes) != 1 or not where or len(away) <= 0.5 * len(where):
        return None
    node = min(nodes)
    return Advice(
        name="numa",
        text=f"{len(away)} of {len(where)} processes run on another NUMA node than their device's, which is {node}.",
        change=f"numactl --cpunodebind={node} --membind={node} python ...",
        trigger="numa",
        value=len(away) / len(where),
        risk="fewer cores for the workers",
    )


def clocks(now: Situation) -> Advice | None:
    """Silent unless clocks were held back most of the time."""
    reasons = {reason for device in now.training.devices for reason in device.throttle_reasons}
    if now.verdict.bound is not Bound.THROTTLED or not reasons:
        return None
    reason = next((one for one in ("hardware", "thermal", "power") if one in reasons), min(reasons))
    slowed = [bool(device.throttle_reasons) for device in now.training.devices]
    share = sum(slowed) / len(slowed)
    return Advice(
        name="clocks",
        text=f"The device runs below its clock {share:.0%} of the time: {', '.join(sorted(reasons))}.",
        change=_CLOCKS.get(reason, "nvidia-smi -q -d PERFORMANCE"),
        trigger="clocks",
        value=share,
    )


def rarer_validation(now: Situation) -> Advice | None:
    """Silent below 10 % of the time."""
    share = now.phase(Phase.VALIDATION)
    if share < now.thresholds.gap:
        return None
    return Advice(
        name="validation",
        text=f"Validation takes {share:.0%} of the time.",
        change="validate every second epoch, or on a fixed tenth of the set, under torch.inference_mode()",
        trigger="validation",
        value=share,
        gain=gain(0.5 * share),
    )


def rarer_checkpoints(now: Situation) -> Advice | None:
    """Silent below 10 % of the time."""
    share = now.phase(Phase.CHECKPOINT)
    if share < now.thresholds.gap:
        return None
    return Advice(
        name="checkpoints",
        text=f"Writing checkpoints takes {share:.0%} of the time.",
        change="torch.distributed.checkpoint.async_save(...), or save half as often",
        trigger="checkpoint",
        value=share,
        gain=gain(0.5 * share),
    )


def communication(now: Situation) -> Advice | None:
    """Silent where one rank is late with its data: that one needs the advice."""
    if now.verdict.bound is not Bound.COMMUNICATION:
        return None
    late = [one for one in now.verdict.evidence if one.name == "rank_gap"]
    if late:
        return Advice(
            name="other_rank",
            text=f"{late[0].text[0].upper()}{late[0].text[1:]}.",
            change="iofast monitor --pid PID  # of that rank",
            trigger="rank_gap",
            value=late[0].value,
        )
    _, talking = now.figure("communication")
    share = "" if talking is None else f" {talking:.0%} of the time"
    return Advice(
        name="communication",
        text=f"The training thread waits{share} for other ranks.",
        change="with model.no_sync(): ... while gradients accumulate; DistributedDataParallel rather than DataParallel",
        trigger="communication",
        value=talking,
    )


RULES = (quota, numa, clocks, rarer_validation, rarer_checkpoints, communication)
