"""The table of advice. `text`, `change` and `risk` are format strings with the words of a rule's match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from iofast.monitor.advice import loader
from iofast.monitor.advice.loader import Match
from iofast.monitor.advice.situation import Situation, gain
from iofast.monitor.findings import Advice, Bound, Cause, Verdict
from iofast.monitor.snapshot import Frame


@dataclass(frozen=True, slots=True)
class Rule:
    """Advice `name` on the verdicts and causes in `on`, if `match` returns a `Match`."""

    name: str
    on: frozenset[Bound | Cause]  # Bound.INPUT means every cause
    match: Callable[[Situation], Match | None]
    text: str
    change: str
    trigger: str
    risk: str = ""
    changes_accuracy: bool = False

    def advice(self, now: Situation) -> Advice | None:
        """Advice for this situation; None if the rule does not apply."""
        if not self._concerns(now.verdict) or (match := self.match(now)) is None:
            return None
        words = {**match.words, "now": now, "value": match.value}
        return Advice(
            name=self.name,
            text=self.text.format_map(words),
            # lines are the rule's own: a path of the watched process adds none
            change="\n".join(line.format_map(words).replace("\n", "\\n") for line in self.change.split("\n")),
            trigger=match.trigger or self.trigger,
            value=match.value,
            gain=match.gain,
            changes_accuracy=self.changes_accuracy,
            risk=self.risk.format_map(words),
        )

    def _concerns(self, verdict: Verdict) -> bool:
        return verdict.bound in self.on or (verdict.bound is Bound.INPUT and verdict.cause in self.on)


def _on(*verdicts: Bound | Cause) -> frozenset[Bound | Cause]:
    return frozenset(verdicts)


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


def _quota(now: Situation) -> Match | None:
    waited = now.training.throttled
    if waited < now.thresholds.bound:
        return None
    cores = now.training.system(lambda one: one.system.cores) or 1.0
    return Match(waited, now.wait_gain if now.caused_by(Cause.CPU) else None, {"cores": cores})


def _send_bytes(now: Situation) -> Match | None:
    """Of copies to the device, only if they cost much."""
    if now.verdict.bound is Bound.TRANSFER:
        copied = _copied(now)
        words = {"why": f"Copies to the device cost {copied:.0%} of the time"}
        return None if copied < now.thresholds.bound else Match(copied, gain(0.75 * copied), words, "transfer")
    trigger, value = now.figure("pin_cpu", "pin", "collate")
    what = "One thread that copies each batch to page-locked memory is late"
    if now.caused_by(Cause.COLLATE):
        what = "Putting batches together and handing them over is what workers do most"
    return Match(value, now.wait_gain, {"why": what}, trigger)


def _copied(now: Situation) -> float:
    """Share of time that copies cost: measured, or bounded by stacks and the device's idle time."""
    if now.training.copied is not None:
        return now.training.copied
    return min(now.training.frames(Frame.TRANSFER) or 0.0, 1.0 if now.training.idle is None else now.training.idle)


def _pin_memory(now: Situation) -> Match | None:
    """Not for FastLoader, which does both already."""
    copied = _copied(now)
    if now.fast_loader or copied < now.thresholds.notice:
        return None
    pinned = "although batches are page-locked" if now.pinned else "from memory that is not page-locked"
    words = {"how": pinned, "pin": "" if now.pinned else "DataLoader(..., pin_memory=True), and "}
    return Match(copied, gain(copied), words)


def _synchronisations(now: Situation) -> Match | None:
    site = next(iter(now.training.syncs()), None)
    return None if site is None else Match(site.share, gain(now.host_idle), {"site": site})


def _graphs(now: Situation) -> Match | None:
    return None if now.compiled else Match(now.host_idle, gain(now.host_idle))


def _mixed_precision(now: Situation) -> Match | None:
    """Only if SMs are at work while tensor cores rest."""
    tensor = now.training.device(lambda device: device.tensor_active)
    active = now.training.device(lambda device: device.sm_active)
    return Match(active) if tensor is not None and tensor < 0.05 and (active or 0.0) >= now.thresholds.half else None


def _clocks(now: Situation) -> Match | None:
    devices = now.training.devices
    slowed = [device for device in devices if device.throttle_reasons]
    reasons = sorted({reason for device in slowed for reason in device.throttle_reasons})
    return Match(len(slowed) / len(devices), words={"reasons": ", ".join(reasons)}) if reasons else None


def _slow_rank(now: Situation) -> Match | None:
    late = next((one for one in now.verdict.evidence if one.name == "rank_gap"), None)
    if late is None:
        return None
    own = now.verdict.bound is Bound.INPUT
    where = "compare its storage, its cores and its share of the samples with another rank's"
    change = where if own else "iofast monitor --pid PID  # of that rank"
    words = {"text": f"{late.text[0].upper()}{late.text[1:]}", "change": change}
    return Match(late.value, now.wait_gain if own else None, words)


_DECODING = (Cause.WORKERS, Cause.CPU, Cause.TAKEN, Cause.SINGLE)
_READING = (Cause.STORAGE, Cause.PAGE_CACHE)
RULES = (
    Rule(
        "other_programs",
        _on(Cause.TAKEN, Bound.COMPUTE),
        _others,
        "Other programs use {value:.1f} of {cores:g} cores{who}, and training gets what they leave.",
        "{change}",
        "other_cores",
    ),
    Rule(
        "first_workers",
        _on(Cause.SINGLE),
        loader.first_workers,
        "The training thread loads its samples itself, at least {value:.0%} of the time; nothing overlaps.",
        "{change}",
        "stall",
    ),
    Rule(
        "num_workers",
        _on(Cause.WORKERS, Cause.STORAGE),
        loader.more_workers,
        "The {count} {what} {why}.",
        "{change}",
        "worker_cpu",
        "each worker holds its own copy of what the data set keeps in memory",
    ),
    Rule(
        "pack_resize",
        _on(*_DECODING, *_READING),
        loader.pack_smaller,
        "{what}{size}: smaller images are read and decoded in a fraction of the time.",
        "iofast pack {now.images} train.lmdb --resize 256",
        "decode",
        "not where training crops need more than 256 pixels{unless}",
        changes_accuracy=True,
    ),
    Rule(
        "pack",
        _on(*_READING),
        loader.pack_small_files,
        "Each sample is a file of {kB:.0f} kB, opened and read on its own from a storage that is slow.",
        "iofast pack {now.images} train.lmdb",
        "file_bytes",
    ),
    Rule(
        "fastloader",
        _on(*_DECODING, *_READING, Cause.COLLATE, Cause.PIN),
        loader.fast_loader,
        "{why}",
        "from iofast import FastDataset, FastLoader, transforms as T\n"
        "{own.dataset} = FastDataset({source})\n"
        "{own.loader} = FastLoader({own.dataset}, {own.batch_size}{options},\n"
        "    transform=T.train({own.side}), dtype=torch.float32)\n"
        "# or, without editing, where Pillow opens JPEGs: iofast run -- {command}",
        "stall",
        "T.train is a random crop, a flip and ImageNet's normalisation: name your own steps",
    ),
    Rule(
        "prefetch_factor",
        _on(Bound.INPUT),
        loader.prefetch,
        "Workers have nothing to do {value:.0%} of the time and are late at others: some batches take longer.",
        "DataLoader(..., prefetch_factor={factor})",
        "starved",
        "memory for the batches that are ready",
    ),
    Rule(
        "persistent_workers",
        _on(Cause.EPOCH_START),
        loader.persistent_workers,
        "Workers are started anew for each epoch; {value:.0%} of the time goes into that.",
        "DataLoader(..., persistent_workers=True)",
        "gap",
        "a data set that is changed between epochs must be changed in the workers",
    ),
    Rule(
        "uint8",
        _on(Cause.COLLATE, Cause.PIN, Bound.TRANSFER),
        _send_bytes,
        "{why}: as uint8 a batch has a quarter of the bytes of float32.",
        "return uint8 tensors from __getitem__, then images.to(device).float().div_(255), and normalise there",
        "collate",
        "nothing to win where batches are uint8 already",
    ),
    Rule(
        "page_cache",
        _on(Cause.PAGE_CACHE),
        loader.page_cache,
        "The data comes from the disk{share}{left}: {what}.",
        "{change}",
        "uncached",
    ),
    Rule(
        "stage",
        _on(Cause.REMOTE),
        loader.stage,
        "{value:.0%} of the bytes read are in the cache, and the store delivers {rate:.0f} MB/s.",
        "{change}",
        "store_hits",
    ),
    Rule(
        "reading_ahead",
        _on(Cause.STORAGE),
        loader.reading_ahead,
        "Training waits in `{site.function}` {value:.0%} of the time: {why}.",
        "{change}",
        "waits_at",
    ),
    Rule(
        "sender",
        _on(Cause.FEEDER),
        loader.sender,
        "Another program sends the batches; training waits {value:.0%} of the time in `{site.call}`.",
        "look at that program where it runs: its processors, its storage, and the network between",
        "waits_at",
    ),
    Rule("slow_rank", _on(Cause.RANK_SKEW, Bound.COMMUNICATION), _slow_rank, "{text}.", "{change}", "rank_gap"),
    Rule(
        "cpu_quota",
        _on(Bound.INPUT, Bound.THROTTLED),
        _quota,
        "The cgroup's quota of {cores:g} cores kept threads waiting {value:.0%} of the time.",
        "raise the container's limit (docker update --cpus N ID; resources.limits.cpu), or use fewer workers",
        "throttled",
    ),
    Rule(
        "pin_memory",
        _on(Bound.TRANSFER),
        _pin_memory,
        "Copies to the device cost {value:.0%} of the time, {how}.",
        "{pin}images = images.to(device, non_blocking=True)",
        "transfer",
        "page-locked memory for the batches that are ready",
    ),
    Rule(
        "sync",
        _on(Bound.SYNC),
        _synchronisations,
        "{site.file}:{site.line} waits for the device ({site.call}) in {value:.0%} of stack samples.",
        "{site.file}:{site.line}: keep the tensor (total += loss.detach()) and read it every 100 steps",
        "sync",
    ),
    Rule(
        "compile",
        _on(Bound.LAUNCH),
        _graphs,
        "The device idles {value:.0%} of the time while the host launches: its kernels are short.",
        'model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs',
        "device_idle",
        "shapes must not change from step to step; the first steps take minutes",
    ),
    Rule(
        "mixed_precision",
        _on(Bound.COMPUTE, Bound.MEMORY),
        _mixed_precision,
        "{value:.0%} of the SMs are at work and the tensor cores rest.",
        'with torch.autocast("cuda", torch.bfloat16): ...',
        "sm_active",
        "losses and norms stay in float32; watch the first epochs",
        changes_accuracy=True,
    ),
    Rule(
        "clocks",
        _on(Bound.THROTTLED),
        _clocks,
        "The device runs below its clock {value:.0%} of the time: {reasons}.",
        "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE  # and look at power supply, limit and air",
        "clocks",
    ),
)
