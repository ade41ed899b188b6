"""Advice on what the device does, or on a host that does not keep it at work. Silent where data is what is late."""

from __future__ import annotations

from iofast.monitor.advice.situation import Situation, gain
from iofast.monitor.findings import Advice, Bound
from iofast.monitor.snapshot import Frame

_BUSY = (Bound.COMPUTE, Bound.MEMORY)
_ONE_CORE = (0.85, 1.15)  # cores that a process uses whose operations run in one thread
_FULL = 0.9  # of a device's memory: the rest is for what comes and goes within a step
_MOST_LARGER = 4.0  # times as large a batch is advised at once


def _host(now: Situation) -> float:
    """Share of time that the device idles, and not for want of a batch."""
    idle = now.training.idle
    return max(0.0, idle - now.high) if idle is not None else 0.0


def _on_device(now: Situation) -> bool:
    return bool(now.training.device_windows)


def _busy(now: Situation) -> float:
    return 1.0 - (now.training.idle or 0.0)


def synchronisations(now: Situation) -> Advice | None:
    """Silent where the device is at work meanwhile: then waiting for it is free."""
    sites = now.training.syncs()
    if now.verdict.bound is not Bound.SYNC or not sites:
        return None
    worst = sites[0]
    return Advice(
        name="sync",
        text=f"{worst.file}:{worst.line} waits for the device ({worst.call}) in {worst.share:.0%} of looks.",
        change=f"{worst.file}:{worst.line}: keep the tensor (total += loss.detach()) and read it every 100 steps",
        trigger="sync",
        value=worst.share,
        gain=gain(_host(now)),
    )


def graphs(now: Situation) -> Advice | None:
    """Silent where the model is compiled already."""
    if now.verdict.bound is not Bound.LAUNCH or now.compiled:
        return None
    return Advice(
        name="compile",
        text=f"The device idles {_host(now):.0%} of the time while the host launches: its kernels are short.",
        change='model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs',
        trigger="device_idle",
        value=_host(now),
        gain=gain(_host(now)),
        risk="shapes must not change from step to step; the first steps take minutes",
    )


def fused_optimizer(now: Situation) -> Advice | None:
    """Silent where no optimiser that launches for each parameter was seen, or where the device is at work anyway."""
    seen = any(one.single_tensor_optimizer for one in now.training.stacks)
    share = now.training.frames(Frame.OPTIMIZER) or 0.0
    if not seen or now.verdict.bound is not Bound.LAUNCH or share < now.thresholds.notice:
        return None
    return Advice(
        name="fused_optimizer",
        text=f"The optimiser launches for each parameter on its own: {share:.0%} of looks.",
        change="torch.optim.AdamW(..., fused=True)  # or foreach=True",
        trigger="optimizer",
        value=share,
        gain=gain(min(share, _host(now))),
    )


def anomaly_detection(now: Situation) -> Advice | None:
    """Silent where it is off."""
    if not any(one.anomaly_detection for one in now.every.stacks):
        return None
    return Advice(
        name="anomaly_detection",
        text="Autograd's anomaly detection is on; it is for finding NaNs and records a stack for each operation.",
        change="torch.autograd.set_detect_anomaly(False)",
        trigger="anomaly_detection",
        value=None,
    )


def cudnn_benchmark(now: Situation) -> Advice | None:
    """Silent without convolutions, and for compiled models."""
    if now.verdict.bound is not Bound.COMPUTE or not now.convolutions or now.compiled or not _on_device(now):
        return None
    return Advice(
        name="cudnn_benchmark",
        text=f"The device is at work {_busy(now):.0%} of the time, with convolutions: let cuDNN try what is fastest.",
        change="torch.backends.cudnn.benchmark = True",
        trigger="device_busy",
        value=_busy(now),
        risk="only where the shapes of batches stay the same; runs are less reproducible",
    )


def channels_last(now: Situation) -> Advice | None:
    """Silent without convolutions, and on devices without tensor cores."""
    if now.verdict.bound not in _BUSY or not now.convolutions or not _on_device(now):
        return None
    if now.capability is not None and now.capability < (7, 0):
        return None
    return Advice(
        name="channels_last",
        text=f"The device is at work {_busy(now):.0%} of the time, with convolutions: tensor cores want channels last.",
        change="model = model.to(memory_format=torch.channels_last), and the images as well",
        trigger="device_busy",
        value=_busy(now),
        risk="pays with mixed precision; layers without it convert back and forth",
    )


def _no_tensor_cores(now: Situation) -> float | None:
    """How busy the SMs are while tensor cores rest; None where that is not so, or not known."""
    tensor = now.training.device(lambda device: device.tensor_active)
    active = now.training.device(lambda device: device.sm_active)
    if now.verdict.bound not in _BUSY or tensor is None or active is None or tensor >= 0.05 or active < 0.5:
        return None
    return active


def mixed_precision(now: Situation) -> Advice | None:
    """Silent where tensor cores are at work, or where nobody knows."""
    active = _no_tensor_cores(now)
    if active is None or (now.capability is not None and now.capability < (7, 0)):
        return None
    half = now.capability is not None and now.capability < (8, 0)
    kind = "float16" if half else "bfloat16"
    return Advice(
        name="mixed_precision",
        text=f"{active:.0%} of the SMs are at work and the tensor cores rest.",
        change=f'with torch.autocast("cuda", torch.{kind}): ...' + ("  # with torch.amp.GradScaler" if half else ""),
        trigger="sm_active",
        value=active,
        changes_accuracy=True,
        risk="losses and norms stay in float32; watch the first epochs",
    )


def tf32(now: Situation) -> Advice | None:
    """Silent where tensor cores are at work, and before Ampere."""
    active = _no_tensor_cores(now)
    if active is None or now.capability is None or now.capability < (8, 0):
        return None
    return Advice(
        name="tf32",
        text=f"{active:.0%} of the SMs are at work in plain float32, beside idle tensor cores.",
        change='torch.set_float32_matmul_precision("high"); torch.backends.cudnn.allow_tf32 = True',
        trigger="sm_active",
        value=active,
        changes_accuracy=True,
        risk="products are rounded to 10 bits of mantissa",
    )


def larger_batch(now: Situation) -> Advice | None:
    """Silent where data is late, where the SMs are full, and where less than 30 % of the memory is free."""
    memory = now.memory
    active = now.training.device(lambda device: device.sm_active)
    if memory is None or memory > 0.70:
        return None
    if now.verdict.bound is not Bound.LAUNCH and not (
        now.verdict.bound in _BUSY and active is not None and active < 0.5
    ):
        return None
    factor = min(_MOST_LARGER, _FULL / max(memory, 1e-9))  # weights and states do not grow with the batch: it is safe
    sizes = [one.batch_size for one in now.training.loaders if one.batch_size]
    wanted = int(factor * max(sizes, default=0))
    wanted -= wanted % 8 if wanted > 16 else 0
    if sizes and wanted <= max(sizes):
        return None
    change = f"batch_size={wanted}" if sizes else f"a batch_size up to {int(10 * factor) / 10:g} times as large"
    shown = f", {active:.0%} of the SMs are at work" if active is not None else ""
    return Advice(
        name="batch_size",
        text=f"{1 - memory:.0%} of the device's memory is free{shown}: larger batches keep it at work for longer.",
        change=f"{change}, and a learning rate to match",
        trigger="memory",
        value=memory,
        changes_accuracy=True,
        risk="convergence may need another learning rate",
    )


def recomputation(now: Situation) -> Advice | None:
    """Silent while memory is there, and where the SMs are full already."""
    memory = now.memory
    active = now.training.device(lambda device: device.sm_active)
    sizes = [one.batch_size for one in now.training.loaders if one.batch_size]
    if memory is None or memory <= 0.90 or now.verdict.bound not in (*_BUSY, Bound.LAUNCH):
        return None
    if (active is not None and active >= 0.8) or (active is None and not sizes) or (sizes and max(sizes) > 32):
        return None
    return Advice(
        name="activation_checkpointing",
        text=f"{memory:.0%} of the device's memory is in use and batches are small: computing anew makes room.",
        change="torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        trigger="memory",
        value=memory,
        risk="costs about a third more computing for each image",
    )


def one_core(now: Situation) -> Advice | None:
    """Silent with a device, where several cores are at work, and where there is one only."""
    used, cores = now.training.main_cpu, now.training.system(lambda one: one.system.cores) or 0.0
    if now.verdict.bound is not Bound.COMPUTE or now.training.device_windows or cores < 1.5:
        return None
    if not _ONE_CORE[0] <= used <= _ONE_CORE[1]:
        return None
    return Advice(
        name="one_core",
        text=f"Training keeps one of {cores:g} cores at work: its operations are too small to be shared out, or many.",
        change="fewer and larger operations: whole batches, torch.compile(model); or torch.set_num_threads()",
        trigger="main_cpu",
        value=used,
        risk="no news where it is meant to use one thread",
    )


def stem(now: Situation) -> Advice | None:
    """Silent unless memory bandwidth is the limit, and without convolutions: it changes the network."""
    if now.verdict.bound is not Bound.MEMORY or not now.convolutions:
        return None
    dram = now.training.device(lambda device: device.dram_active) or 0.0
    return Advice(
        name="stem",
        text=f"The device's memory is at work {dram:.0%} of the time, tensor cores are not: large maps, few channels.",
        change="nn.Conv2d(3, 64, 7, stride=2, padding=3) as the first layer: down-sample early",
        trigger="dram_active",
        value=dram,
        changes_accuracy=True,
        risk="another network; train it anew",
    )


RULES = (
    synchronisations,
    graphs,
    fused_optimizer,
    anomaly_detection,
    mixed_precision,
    tf32,
    channels_last,
    cudnn_benchmark,
    larger_batch,
    recomputation,
    one_core,
    stem,
)
