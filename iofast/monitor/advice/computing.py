"""Advice on the device: bringing batches to it, and keeping it at work."""

from __future__ import annotations

from iofast.monitor.advice.rule import BUSY, EVERY, Match, Rule, on
from iofast.monitor.advice.situation import Situation, gain
from iofast.monitor.findings import Bound, Cause
from iofast.monitor.snapshot import Frame

_ONE_CORE = (0.85, 1.15)  # cores in use by a process whose operations run in one thread
_FULL = 0.9  # of a device's memory: the rest is for temporary tensors
_MOST_LARGER = 4.0  # largest factor of a batch size in one piece of advice


def _copied(now: Situation) -> float:
    """Share of time that copies cost: measured, or bounded by stacks and the device's idle time."""
    if now.training.copied is not None:
        return now.training.copied
    idle = now.training.idle
    return min(now.training.frames(Frame.TRANSFER) or 0.0, idle if idle is not None else 1.0)


def _pin_memory(now: Situation) -> Match | None:
    """Not if a pin thread runs, and not if copies cost little."""
    copied = _copied(now)
    return None if now.pinned or copied < now.thresholds.notice else Match(copied, gain(copied))


def _non_blocking(now: Situation) -> Match | None:
    """Only with page-locked memory, from which alone a copy overlaps; FastLoader does it already."""
    copying = now.training.frames(Frame.TRANSFER) or 0.0
    if not now.pinned or now.fast_loader or copying < now.thresholds.transfer:
        return None
    return Match(copying, gain(_copied(now)))


def _send_bytes(now: Situation) -> Match | None:
    copied = _copied(now)
    return None if copied < now.thresholds.transfer else Match(copied, gain(0.75 * copied))


def _gpu_decode(now: Situation) -> Match | None:
    """Not if the device has no time to spare."""
    return None if now.idle < now.thresholds.idle else Match(now.idle, now.wait_gain)


def _synchronisations(now: Situation) -> Match | None:
    site = next(iter(now.training.syncs()), None)
    return None if site is None else Match(site.share, gain(now.host_idle), {"site": site})


def _graphs(now: Situation) -> Match | None:
    return None if now.compiled else Match(now.host_idle, gain(now.host_idle))


def _fused_optimizer(now: Situation) -> Match | None:
    """Only if an optimizer that launches per parameter was seen."""
    share = now.training.frames(Frame.OPTIMIZER) or 0.0
    if share < now.thresholds.notice or not any(one.single_tensor_optimizer for one in now.training.stacks):
        return None
    return Match(share, gain(min(share, now.host_idle)))


def _anomaly_detection(now: Situation) -> Match | None:
    return Match(None) if any(one.anomaly_detection for one in now.every.stacks) else None


def _convolves(now: Situation) -> bool:
    return now.convolutions and bool(now.training.device_windows)


def _cudnn_benchmark(now: Situation) -> Match | None:
    return Match(now.busy) if _convolves(now) and not now.compiled else None


def _channels_last(now: Situation) -> Match | None:
    """Not on devices without tensor cores."""
    return Match(now.busy) if _convolves(now) and now.capable((7, 0)) is not False else None


def _no_tensor_cores(now: Situation) -> float | None:
    """Share of SMs at work while tensor cores rest; None if that is not so, or unknown."""
    tensor, active = now.training.device(lambda device: device.tensor_active), now.sm_active
    return None if tensor is None or active is None or tensor >= 0.05 or active < 0.5 else active


def _mixed_precision(now: Situation) -> Match | None:
    active = _no_tensor_cores(now)
    if active is None or now.capable((7, 0)) is False:
        return None
    kind = "bfloat16): ..."
    if now.capable((8, 0)) is False:
        kind = "float16): ...  # with torch.amp.GradScaler"
    return Match(active, words={"kind": kind})


def _tf32(now: Situation) -> Match | None:
    """Only from Ampere on."""
    active = _no_tensor_cores(now)
    return Match(active) if active is not None and now.capable((8, 0)) else None


def _larger_batch(now: Situation) -> Match | None:
    """Not if SMs are full, and not if less than 30 % of the memory is free."""
    memory, active = now.memory, now.sm_active
    if memory is None or memory > 0.70:
        return None
    if now.verdict.bound is not Bound.LAUNCH and (active is None or active >= 0.5):
        return None
    factor = min(_MOST_LARGER, _FULL / max(memory, 1e-9))  # weights and states do not grow with the batch
    wanted = int(factor * now.batch_size)
    wanted -= wanted % 8 if wanted > 16 else 0
    if now.batch_size and wanted <= now.batch_size:
        return None
    size = f"batch_size={wanted}" if now.batch_size else f"a batch_size up to {int(10 * factor) / 10:g} times as large"
    shown = "" if active is None else f", {active:.0%} of the SMs are at work"
    return Match(memory, words={"free": 1 - memory, "active": shown, "size": size})


def _recomputation(now: Situation) -> Match | None:
    """Not while memory is free, and not if SMs are full or batches are large."""
    memory, active = now.memory, now.sm_active
    if memory is None or memory <= 0.90 or now.batch_size > 32:
        return None
    if (active is None and not now.batch_size) or (active is not None and active >= 0.8):
        return None
    return Match(memory)


def _one_core(now: Situation) -> Match | None:
    """Not beside a device, not on a machine with one core, and not where other programs have the rest."""
    used, cores = now.training.main_cpu, now.training.system(lambda one: one.system.cores) or 0.0
    if now.training.device_windows or now.training.taken or cores < 1.5 or not _ONE_CORE[0] <= used <= _ONE_CORE[1]:
        return None
    return Match(used, words={"cores": cores})


def _stem(now: Situation) -> Match | None:
    dram = now.training.device(lambda device: device.dram_active) or 0.0
    return Match(dram) if now.convolutions else None


TRANSFER_RULES = (
    Rule(
        name="pin_memory",
        on=on(Bound.TRANSFER),
        match=_pin_memory,
        text="Copies to the device cost {value:.0%} of the time, from memory that is not page-locked.",
        change="DataLoader(..., pin_memory=True), and images = images.to(device, non_blocking=True)",
        trigger="transfer",
        risk="page-locked memory for the batches that are ready",
    ),
    Rule(
        name="non_blocking",
        on=on(Bound.TRANSFER),
        match=_non_blocking,
        text="Batches are page-locked, and the training thread still waits for copies in {value:.0%} of stack samples.",
        change="images = images.to(device, non_blocking=True)",
        trigger="transfer",
    ),
    Rule(
        name="uint8",
        on=on(Bound.TRANSFER),
        match=_send_bytes,
        text="Copies cost {value:.0%} of the time; as uint8 a batch has a quarter of the bytes of float32.",
        change="send uint8, then images = images.to(device).float().div_(255) and normalise there",
        trigger="transfer",
        risk="nothing to win where batches are uint8 already",
    ),
    Rule(
        name="gpu_decode",
        on=on(Cause.CPU),
        match=_gpu_decode,
        text="All processors are busy with images while the device runs nothing {value:.0%} of the time.",
        change='FastLoader(..., device="cuda", decode="auto")',
        trigger="device_idle",
        changes_accuracy=True,
        risk="for JPEGs, with a decoder that `iofast doctor` finds; it rounds differently",
    ),
)
COMPUTE_RULES = (
    Rule(
        name="sync",
        on=on(Bound.SYNC),
        match=_synchronisations,
        text="{site.file}:{site.line} waits for the device ({site.call}) in {value:.0%} of stack samples.",
        change="{site.file}:{site.line}: keep the tensor (total += loss.detach()) and read it every 100 steps",
        trigger="sync",
    ),
    Rule(
        name="compile",
        on=on(Bound.LAUNCH),
        match=_graphs,
        text="The device idles {value:.0%} of the time while the host launches: its kernels are short.",
        change='model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs',
        trigger="device_idle",
        risk="shapes must not change from step to step; the first steps take minutes",
    ),
    Rule(
        name="fused_optimizer",
        on=on(Bound.LAUNCH),
        match=_fused_optimizer,
        text="The optimizer launches for each parameter on its own: {value:.0%} of stack samples.",
        change="torch.optim.AdamW(..., fused=True)  # or foreach=True",
        trigger="optimizer",
    ),
    Rule(
        name="anomaly_detection",
        on=EVERY,
        match=_anomaly_detection,
        text="Autograd's anomaly detection is on; it is for finding NaNs and records a stack for each operation.",
        change="torch.autograd.set_detect_anomaly(False)",
        trigger="anomaly_detection",
    ),
    Rule(
        name="mixed_precision",
        on=BUSY,
        match=_mixed_precision,
        text="{value:.0%} of the SMs are at work and the tensor cores rest.",
        change='with torch.autocast("cuda", torch.{kind}',
        trigger="sm_active",
        changes_accuracy=True,
        risk="losses and norms stay in float32; watch the first epochs",
    ),
    Rule(
        name="tf32",
        on=BUSY,
        match=_tf32,
        text="{value:.0%} of the SMs are at work in plain float32, beside idle tensor cores.",
        change='torch.set_float32_matmul_precision("high"); torch.backends.cudnn.allow_tf32 = True',
        trigger="sm_active",
        changes_accuracy=True,
        risk="products are rounded to 10 bits of mantissa",
    ),
    Rule(
        name="channels_last",
        on=BUSY,
        match=_channels_last,
        text="The device is at work {value:.0%} of the time, with convolutions: tensor cores want channels last.",
        change="model = model.to(memory_format=torch.channels_last), and the images as well",
        trigger="device_busy",
        risk="pays with mixed precision; layers without it convert back and forth",
    ),
    Rule(
        name="cudnn_benchmark",
        on=on(Bound.COMPUTE),
        match=_cudnn_benchmark,
        text="The device is at work {value:.0%} of the time, with convolutions: let cuDNN try what is fastest.",
        change="torch.backends.cudnn.benchmark = True",
        trigger="device_busy",
        risk="only where the shapes of batches stay the same; runs are less reproducible",
    ),
    Rule(
        name="batch_size",
        on=BUSY | on(Bound.LAUNCH),
        match=_larger_batch,
        text="{free:.0%} of the device's memory is free{active}: larger batches keep it at work for longer.",
        change="{size}, and a learning rate to match",
        trigger="memory",
        changes_accuracy=True,
        risk="convergence may need another learning rate",
    ),
    Rule(
        name="activation_checkpointing",
        on=BUSY | on(Bound.LAUNCH),
        match=_recomputation,
        text="{value:.0%} of the device's memory is in use and batches are small: computing anew makes room.",
        change="torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        trigger="memory",
        risk="costs about a third more computing for each image",
    ),
    Rule(
        name="one_core",
        on=on(Bound.COMPUTE),
        match=_one_core,
        text="Training keeps {value:.1f} of {cores:g} cores at work: its operations are many, or too small to share.",
        change="fewer and larger operations: whole batches, torch.compile(model); or torch.set_num_threads()",
        trigger="main_cpu",
        risk="no news where it is meant to use one thread",
    ),
    Rule(
        name="stem",
        on=on(Bound.MEMORY),
        match=_stem,
        text="The device's memory is at work {value:.0%} of the time, tensor cores are not: large maps, few channels.",
        change="nn.Conv2d(3, 64, 7, stride=2, padding=3) as the first layer: down-sample early",
        trigger="dram_active",
        changes_accuracy=True,
        risk="another network; train it anew",
    ),
)
