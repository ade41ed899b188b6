"""Moments written by hand, for the tests of the monitor's views: a starved job, a busy one, an unknown one."""

import math
from dataclasses import replace

from monitor_snapshots import DEVICE, LOADER, MAIN, worker
from monitor_snapshots import snapshot as second

from iofast.monitor.findings import Advice, Bound, Cause, Evidence, Phase, Severity, StallBounds, Verdict
from iofast.monitor.render.moment import History, Moment
from iofast.monitor.snapshot import DeviceFigures, Doing, Job, Snapshot, Tier, WaitSite, WaitSource

READS = {"name": "python", "read_bytes": 1_400_000}
HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred",
    "a\r\nb\tc\x00d\x7f\x9b31m",
    "[bold red]markup[/] [link=file:///x]y[/link]",
    "<script>alert(1)</script><img src=x onerror='y'>\"&amp;",
    '=cmd|\' /C calc\'!A0","+1","@x',
    '"} 1\niofast_verdict{pid="1"} 0\\',
    "\u202egnp.exe\u2066\u200b\ufeff\U000e0041",
    "z" + "\u0301" * 40,
    "\udc80\udcff surrogates",
    "日本語" * 60,
)


def device(busy: float = 0.61, **changes: object) -> DeviceFigures:
    """A GPU that reports every figure."""
    active = {"busy": busy, "sm_active": busy * 0.7, "tensor_active": 0.2, "dram_active": 0.3}
    known = {"power_w": 310.0, "power_limit_w": 700.0, "memory_used": 23_000_000_000, "memory_total": 85_000_000_000}
    made = {"name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-1", **active, **known, **changes}
    return replace(DEVICE, **made)  # type: ignore[arg-type]


def snapshot(number: int = 0, text: str = "", **changes: object) -> Snapshot:
    """The second `number` of a starved job; `text` replaces every text from outside."""
    wave = 0.6 + 0.3 * math.sin(number / 5)
    made = replace(
        second({Doing.QUEUE: 0.4, Doing.RUNNING: 0.6}, time_s=101.0 + number),
        job=Job(4242, 77, text or "python train.py --data imagenet/train --epochs 90", 0, 1),
        processes=(replace(MAIN, cpu_s=0.4, **READS), *(worker(number, 0.93, **READS) for number in range(2))),
        devices=(device(wave, **({"name": text, "uuid": text} if text else {})),),
        notes=(text or "no Python stacks: ptrace is not allowed here (sudo sysctl kernel.yama.ptrace_scope=0)",),
    )
    if text:
        named = {"name": text, "kind": text, "device": text, "phases": {text: 0.1}, "stages": {text: 1.0}}
        made = replace(made, loaders=(replace(LOADER, **named),), data_folder=text)
    return replace(made, **changes)  # type: ignore[arg-type]


def starved(text: str = "", **changes: object) -> Verdict:
    """Input-bound by too few workers; `text` replaces every text from outside."""
    advice = (
        Advice(
            "num_workers",
            text or "both workers are busy 93% of the time and 5.6 of 8 cores are free",
            text or "DataLoader(..., num_workers=4, persistent_workers=True)",
            "worker_cpu",
            0.93,
            1.52,
            risk=text or "each worker takes 0.8 GB",
        ),
        Advice(
            "pack",
            "decoding takes 71% of the workers' time, of images 4 times as large as the crop",
            "iofast pack imagenet/train train.lmdb --resize 256",
            "decode",
            0.71,
            1.6,
            changes_accuracy=True,
        ),
        Advice("fastloader", "the loader's work is decoding, which FastLoader does in threads", "", "decode", 0.71),
    )
    verdict = Verdict(
        bound=Bound.INPUT,
        cause=Cause.WORKERS,
        stall=StallBounds(0.31, 0.38, Tier.STACKS),
        severity=Severity.SEVERE,
        evidence=(
            Evidence("worker_cpu", 0.93, text or "workers run 93% of the time"),
            Evidence("idle_cores", 5.6, "5.6 of 8 cores are free"),
            Evidence("device_busy", 0.61, "the device ran a kernel 61% of the time"),
        ),
        advice=advice,
        reason=text,
        tier=Tier.STACKS,
        phases={Phase.WARM_UP: 4.0, Phase.TRAINING: 92.0, Phase.VALIDATION: 11.0, Phase.CHECKPOINT: 3.0},
        seconds=92.0,
        steps=212,
        waits=WaitSite(text or "/u/train.py", 41, text or "main", text or "queue.get", WaitSource.THREADS, True, 0.34),
    )
    return replace(verdict, **changes)  # type: ignore[arg-type]


def busy() -> Verdict:
    """Compute-bound."""
    return Verdict(
        Bound.COMPUTE,
        None,
        StallBounds(0.0, 0.02, Tier.INSIDE),
        Severity.NONE,
        tier=Tier.INSIDE,
        seconds=60.0,
        steps=900,
    )


def unknown() -> Verdict:
    """No verdict yet."""
    reason = "7 steps in 12 s were seen, 20 steps or 30 s are needed"
    return Verdict(Bound.UNKNOWN, None, None, Severity.NONE, reason=reason)


def moment(seconds: int = 90, text: str = "", last: Verdict | None = None, **changes: object) -> Moment:
    """A job after this many seconds: first unknown, then `last` (default: starved)."""
    history = History(100.0)
    verdict = starved(text) if last is None else last
    for number in range(seconds - 1):
        history.add(snapshot(number, text, **changes), unknown() if number < 10 else verdict)
    return history.add(snapshot(seconds - 1, text, **changes), verdict)
