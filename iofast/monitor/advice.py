"""Advice: what to change, best first. A rule is a function that returns one piece of advice, or None.

Rules on a late loader are in advice_on_loader.py, those on what else limits a step below: other programs, quotas,
copies, synchronisations, launches, ranks, clocks.

Predicted gains are upper bounds: removing a wait gains at most 1 / (1 - E), with the lower bound of E. No gain is
predicted if training and an exhausted loader share the cores; then advice that frees them comes first.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from iofast.monitor import advice_on_loader as loader
from iofast.monitor import thresholds
from iofast.monitor.advice_on_loader import pasted
from iofast.monitor.findings import Advice, Bound, Cause, Evidence, Prediction
from iofast.monitor.snapshot import Frame
from iofast.monitor.what_if import Situation, gain


def other_programs(now: Situation) -> Advice | None:
    """Also where training computes on the CPU."""
    taken = now.training.taken
    if taken is None or now.verdict.cause is not Cause.TAKEN:
        return None
    busiest = now.training.snapshots[-1].system.busiest
    who, change = "", "run it on cores of its own: taskset -c, docker run --cpuset-cpus, srun --exclusive"
    if busiest is not None:
        pid = busiest.split()[1].rstrip(",")
        who = f" ({busiest})"
        change = f"taskset -acp 0 {pid}  # keeps it on one core; or stop it, or train on other cores"
    cores = now.cores * now.ranks
    text = f"Other programs use {taken:.1f} of {cores:g} cores{who}, and training gets what they leave."
    return Advice("other_programs", text, change, "other_cores", taken)


def cpu_quota(now: Situation) -> Advice | None:
    """Not if no thread waits for it."""
    waited, cores = now.training.throttled, now.training.cores or 1.0
    if waited < now.training.bound:
        return None
    text = f"The cgroup's quota of {cores:g} cores kept threads waiting {waited:.0%} of the time."
    change = "raise the container's limit (docker update --cpus N ID; resources.limits.cpu), or use fewer workers"
    return Advice("cpu_quota", text, change, "throttled", waited, now.wait_gain if now.caused_by(Cause.CPU) else None)


def uint8(now: Situation) -> Advice | None:
    """Of copies to the device, only if they cost much."""
    copied, copies = _copied(now), now.verdict.bound is Bound.TRANSFER
    seen = Evidence("transfer", copied, "") if copies else now.verdict.figure("pin_cpu", "pin", "collate")
    if seen is None or (copies and copied < now.training.bound):
        return None
    why = "One thread that copies each batch to page-locked memory is late"
    if copies:
        why = f"Copies to the device cost {copied:.0%} of the time"
    elif now.caused_by(Cause.COLLATE):
        why = "Putting batches together and handing them over is what workers do most"
    text = f"{why}: as uint8 a batch has a quarter of the bytes of float32."
    change = "return uint8 tensors from __getitem__, then images.to(device).float().div_(255), and normalise there"
    most, risk = gain(0.75 * copied) if copies else now.wait_gain, "nothing to win where batches are uint8 already"
    return Advice("uint8", text, change, seen.name, seen.value, most, risk=risk)


def _copied(now: Situation) -> float:
    """Share of time that copies cost: measured, or bounded by stacks and the device's idle time."""
    if now.training.copied is not None:
        return now.training.copied
    return min(now.training.frames(Frame.TRANSFER) or 0.0, 1.0 if now.training.idle is None else now.training.idle)


def pin_memory(now: Situation) -> Advice | None:
    """Not for FastLoader, which does both already."""
    copied = _copied(now)
    if now.fast_loader or copied < thresholds.NOTICE:
        return None
    pinned = now.every.thread_cpu("pt_data_pin") is not None
    how = "although batches are page-locked" if pinned else "from memory that is not page-locked"
    change = "images = images.to(device, non_blocking=True)"
    change = change if pinned else f"DataLoader(..., pin_memory=True), and {change}"
    text = f"Copies to the device cost {copied:.0%} of the time, {how}."
    risk = "page-locked memory for the batches that are ready"
    return Advice("pin_memory", text, change, "transfer", copied, gain(copied), risk=risk)


def sync(now: Situation) -> Advice | None:
    """Not if the line is unknown."""
    site = next(iter(now.training.syncs), None)
    if site is None:
        return None
    place = f"{site.file}:{site.line}"
    text = f"{place} waits for the device ({site.call}) in {site.share:.0%} of stack samples."
    change = pasted(f"{place}: keep the tensor (total += loss.detach()) and read it every 100 steps")
    return Advice("sync", text, change, "sync", site.share, gain(_host_idle(now)))


def graphs(now: Situation) -> Advice | None:
    """Not for a network that is compiled."""
    if any(one.compiled for one in now.every.stacks):
        return None
    idle = _host_idle(now)
    text = f"The device idles {idle:.0%} of the time while the host launches: its kernels are short."
    change = 'model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs'
    risk = "shapes must not change from step to step; the first steps take minutes"
    return Advice("compile", text, change, "device_idle", idle, gain(idle), risk=risk)


def _host_idle(now: Situation) -> float:
    """Share of time in which the device idles, and not for want of a batch."""
    stall = now.verdict.stall
    return max(0.0, (now.training.idle or 0.0) - (1.0 if stall is None else stall.high))


def mixed_precision(now: Situation) -> Advice | None:
    """Only if SMs are at work while tensor cores rest."""
    tensor, active = now.training.tensor_active, now.training.sm_active or 0.0
    if tensor is None or tensor >= 0.05 or active < thresholds.HALF:
        return None
    text = f"{active:.0%} of the SMs are at work and the tensor cores rest."
    change = 'with torch.autocast("cuda", torch.bfloat16): ...'
    risk = "losses and norms stay in float32; watch the first epochs"
    return Advice("mixed_precision", text, change, "sm_active", active, changes_accuracy=True, risk=risk)


def clocks(now: Situation) -> Advice | None:
    """Not if no clock is held back."""
    seen = now.verdict.figure("clocks")
    if seen is None:
        return None
    change = "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE  # and look at power supply, limit and air"
    return Advice("clocks", _sentence(seen), change, seen.name, seen.value)


def slow_rank(now: Situation) -> Advice | None:
    """Not if no rank is later than the others."""
    late = now.verdict.figure("rank_gap")
    if late is None:
        return None
    own = now.verdict.bound is Bound.INPUT
    change = "compare its storage, its cores and its share of the samples with another rank's"
    change = change if own else "iofast monitor --pid PID  # of that rank"
    return Advice("slow_rank", _sentence(late), change, "rank_gap", late.value, now.wait_gain if own else None)


def _sentence(seen: Evidence) -> str:
    return f"{seen.text[0].upper()}{seen.text[1:]}."


_DECODING = (Cause.WORKERS, Cause.CPU, Cause.TAKEN, Cause.SINGLE)
RULES: dict[Callable[[Situation], Advice | None], tuple[Bound | Cause, ...]] = {  # on which verdicts it speaks
    other_programs: (Cause.TAKEN, Bound.COMPUTE),
    loader.first_workers: (Cause.SINGLE,),
    loader.num_workers: (Cause.WORKERS, Cause.STORAGE),
    loader.pack_resize: (*_DECODING, *loader.READING),
    loader.pack: loader.READING,
    loader.fastloader: (*_DECODING, *loader.READING, Cause.COLLATE, Cause.PIN),
    loader.prefetch_factor: (Bound.INPUT,),  # every cause
    loader.persistent_workers: (Cause.EPOCH_START,),
    uint8: (Cause.COLLATE, Cause.PIN, Bound.TRANSFER),
    loader.page_cache: (Cause.PAGE_CACHE,),
    loader.stage: (Cause.REMOTE,),
    loader.reading_ahead: (Cause.STORAGE,),
    loader.sender: (Cause.FEEDER,),
    slow_rank: (Cause.RANK_SKEW, Bound.COMMUNICATION),
    cpu_quota: (Bound.INPUT, Bound.THROTTLED),
    pin_memory: (Bound.TRANSFER,),
    sync: (Bound.SYNC,),
    graphs: (Bound.LAUNCH,),
    mixed_precision: (Bound.COMPUTE, Bound.MEMORY),
    clocks: (Bound.THROTTLED,),
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
