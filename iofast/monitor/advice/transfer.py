"""Advice on bringing batches to the device."""

from __future__ import annotations

from iofast.monitor.advice.situation import Situation, gain
from iofast.monitor.findings import Advice, Bound, Cause
from iofast.monitor.snapshot import Frame


def _copied(now: Situation) -> float:
    """Share of time that copies cost: measured, or as the stacks and the device's idle time bound it."""
    measured = now.training.per_step(lambda loader: loader.transfer_s)
    if measured is not None:
        return measured
    copying, idle = now.training.frames(Frame.TRANSFER), now.training.idle
    return min(copying or 0.0, idle if idle is not None else 1.0)


def pin_memory(now: Situation) -> Advice | None:
    """Silent where a pin thread runs, where no copy is exposed, and never in the form of .pin_memory() in the loop."""
    copied = _copied(now)
    if now.verdict.bound is not Bound.TRANSFER or now.pinned or copied < now.thresholds.notice:
        return None
    return Advice(
        name="pin_memory",
        text=f"Copies to the device cost {copied:.0%} of the time, from memory that is not page-locked.",
        change="DataLoader(..., pin_memory=True), and images = images.to(device, non_blocking=True)",
        trigger="transfer",
        value=copied,
        gain=gain(copied),
        risk="page-locked memory for the batches that are ready",
    )


def non_blocking(now: Situation) -> Advice | None:
    """Silent without page-locked memory, from which alone a copy runs beside the host; FastLoader does it already."""
    copying = now.training.frames(Frame.TRANSFER)
    if now.verdict.bound is not Bound.TRANSFER or not now.pinned or now.fast_loader or not copying:
        return None
    if copying < now.thresholds.transfer:
        return None
    return Advice(
        name="non_blocking",
        text=f"Batches are page-locked, and the training thread still waits for copies in {copying:.0%} of looks.",
        change="images = images.to(device, non_blocking=True)",
        trigger="transfer",
        value=copying,
        gain=gain(_copied(now)),
    )


def send_bytes(now: Situation) -> Advice | None:
    """Silent where copies cost less than 10 %."""
    copied = _copied(now)
    if now.verdict.bound is not Bound.TRANSFER or copied < now.thresholds.transfer:
        return None
    return Advice(
        name="uint8",
        text=f"Copies cost {copied:.0%} of the time; as uint8 a batch has a quarter of the bytes of float32.",
        change="send uint8, then images = images.to(device).float().div_(255) and normalise there",
        trigger="transfer",
        value=copied,
        gain=gain(0.75 * copied),
        risk="nothing to win where batches are uint8 already",
    )


def gpu_decode(now: Situation) -> Advice | None:
    """Silent where the device has no time to spare, and where processors are left."""
    idle = now.training.idle
    if not now.is_input(Cause.CPU) or idle is None or idle < now.thresholds.idle:
        return None
    return Advice(
        name="gpu_decode",
        text=f"All processors are busy with images while the device runs nothing {idle:.0%} of the time.",
        change='FastLoader(..., device="cuda", decode="auto")',
        trigger="device_idle",
        value=idle,
        gain=gain(now.low),
        changes_accuracy=True,
        risk="for JPEGs, with a decoder that `iofast doctor` finds; it rounds differently",
    )


RULES = (pin_memory, non_blocking, send_bytes, gpu_decode)
