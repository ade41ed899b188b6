"""The programs of the suites: how each is built, and the right verdicts, fixed before its first run.

`final` is judged. The others are for predictions: the model was made with `change-tune`, and tried on `change-final`.
If a run differs from the program's design, its recorded timelines give the right verdict (score.py).
"""

import json
from dataclasses import asdict, dataclass, replace
from typing import Final

from iofast.monitor.findings import Bound, Cause

INPUT, COMPUTE, SYNC, LAUNCH = (Bound.INPUT,), (Bound.COMPUTE,), (Bound.SYNC,), (Bound.LAUNCH,)
UNKNOWN, IDLE = (Bound.UNKNOWN,), (Bound.IDLE,)  # training waits for something else than a batch; no training
STALLED = (Bound.STALLED,)
SLOW_PERIOD: Final = 166_667  # older GPUs take a utilisation sample six times a second; newer ones fifty times


@dataclass(frozen=True)
class Program:
    """One training program.

    load        what its samples cost: sleep, decode, packed (decode, of what `iofast pack --resize 256` made),
                disk, store, web (FastLoader, objects), collate, pickle, copy or nothing
    cost_s      of a batch, for the loads sleep, store, collate and pickle
    compute     device seconds a batch for each second that the loader needs for one, measured while warming up
    step_s      device seconds a batch, if `compute` is 0
    wait        when the training thread waits for the device: never (queues as deep as the device allows), step
                (.item() after each), loop (.item() after each kernel)
    spin        the thread waits by polling
    loader      torch, fast, webdataset; one of the program's own (feeders.py); async: training is a coroutine; none
    extra       further events: validation, checkpoint, second-loader, idle-loader, one-core, quota, pin, accumulate;
                sleeps: after each step; asks: waits for an answer of another process; taken: a busy program beside it
                for each core; hangs: its workers are stopped
    stall       the exposed stall by design
    bounds, causes   the right verdicts and causes
    """

    name: str
    bounds: tuple[Bound, ...]
    causes: tuple[Cause, ...] = ()
    stall: float = 0.0
    load: str = "nothing"
    cost_s: float = 0.05
    compute: float = 0.0
    step_s: float = 0.06
    loader: str = "torch"
    workers: int = 1
    start: str = "fork"
    persistent: bool = True
    batch: int = 8
    side: int = 0  # of a FastLoader's images; 0: crops of 224
    wait: str = "step"
    spin: bool = False
    kernels: int = 9
    ops: int = 0  # small operations on the processor for each kernel
    extra: str = ""
    batches: int = 1_000_000  # of an epoch
    device: bool = True
    period_us: int = 20_000

    def __str__(self) -> str:
        """JSON for another process, which needs no verdicts."""
        return json.dumps(asdict(self) | {"bounds": (), "causes": ()})


def _input(name: str, stall: float, load: str, *causes: Cause) -> Program:
    """Input-bound, with a loader that works ahead."""
    return Program(name, INPUT, causes, stall=stall, load=load, compute=1 - stall)


SLEEPING = _input("sleep-1w", 0.5, "sleep", Cause.STORAGE)
DECODING = _input("decode-1w", 0.6, "decode", Cause.WORKERS)
INLINE = _input("decode-0w", 0.65, "decode", Cause.SINGLE)
STEADY = Program("compute-step", COMPUTE)

QUEUE = replace(SLEEPING, name="queue-sleep", loader="queue")  # a generator round a queue that a thread fills
QUICK = replace(STEADY, name="queue-compute", loader="queue")  # the same with nothing to wait for
TINY = replace(QUEUE, name="queue-tiny", device=False, stall=0.96, compute=0.0, step_s=0.002)
SOCKET = replace(QUEUE, name="socket-sleep", loader="socket", causes=(Cause.FEEDER,))
ASYNC = replace(QUEUE, name="async-sleep", loader="async", stall=0.6, compute=0.0, step_s=0.033)
SLEEPER = Program("sleeps", UNKNOWN, extra="sleeps", loader="queue", step_s=0.01)
ASKING = replace(SLEEPER, name="asks", extra="asks")

JUDGED: Final = (
    replace(QUEUE, cost_s=0.12, stall=0.7, compute=0.3, wait="never"),
    replace(TINY, cost_s=0.1, step_s=0.004),
    replace(TINY, name="processes-tiny", loader="processes", cost_s=0.08),
    replace(TINY, name="generator-tiny", loader="generator", causes=(Cause.SINGLE,), cost_s=0.03, step_s=0.001),
    replace(DECODING, name="queue-decode", loader="queue", stall=0.4, compute=0.6, batch=12),
    replace(QUICK, step_s=0.15, wait="never"),
    replace(QUICK, name="queue-cpu-compute", device=False, load="sleep", cost_s=0.01, step_s=0.12),
    replace(DECODING, name="processes-decode", loader="processes", stall=0.5, compute=0.5, batch=12),
    replace(QUICK, name="processes-compute", loader="processes", load="sleep", cost_s=0.01, step_s=0.04),
    replace(INLINE, name="generator-decode", loader="generator", compute=1.0, stall=0.5),
    replace(QUICK, name="generator-compute", loader="generator", step_s=0.1, wait="never"),
    replace(QUEUE, name="futures-sleep", loader="futures", cost_s=0.15, stall=0.6, compute=0.4),
    replace(QUICK, name="futures-compute", loader="futures", load="sleep", cost_s=0.02, step_s=0.1),
    replace(DECODING, name="pool-decode", loader="pool", stall=0.4, compute=0.6, batch=12),
    replace(QUEUE, name="asyncio-sleep", loader="asyncio", cost_s=0.1, stall=0.4, compute=1.5),
    replace(QUICK, name="asyncio-compute", loader="asyncio", device=False, step_s=0.06),
    replace(ASYNC, cost_s=0.12, stall=0.8, step_s=0.03),
    replace(ASYNC, name="async-compute", bounds=COMPUTE, causes=(), load="nothing", stall=0.0, step_s=0.08),
    replace(SOCKET, cost_s=0.1, stall=0.6, compute=0.4),
    replace(DECODING, name="socket-decode", loader="socket", stall=0.5, compute=0.5, batch=12),
    replace(QUICK, name="socket-compute", loader="socket", device=False, load="sleep", cost_s=0.01, step_s=0.1),
    replace(SOCKET, name="zeromq-sleep", loader="zeromq", cost_s=0.09, stall=0.7, compute=0.3),
    replace(SOCKET, name="grpc-sleep", loader="grpc", cost_s=0.09, stall=0.4, compute=0.6),
    replace(SLEEPER, cost_s=0.1, device=False),
    replace(ASKING, cost_s=0.1, device=False),
    Program("serves", IDLE, loader="none", device=False),
    replace(SLEEPING, cost_s=0.14, stall=0.8, compute=0.2),
    replace(SLEEPING, name="sleep-2w-async", workers=2, stall=0.55, compute=0.45, wait="never", cost_s=0.2),
    replace(SLEEPING, name="sleep-spin", stall=0.4, compute=0.6, spin=True, cost_s=0.1),
    Program("sleep-0w", INPUT, (Cause.STORAGE, Cause.SINGLE), 0.25, "sleep", compute=3.0, workers=0, cost_s=0.03),
    _input("disk-2w", 0.7, "disk", Cause.STORAGE, Cause.PAGE_CACHE),
    _input("store-2w", 0.5, "store", Cause.STORAGE),
    # outside, a wait for a network looks like one for a disk
    replace(_input("web-fast-2w", 0.5, "web", Cause.REMOTE, Cause.STORAGE), loader="fast", workers=2),
    replace(INLINE, compute=1.0, workers=0, stall=0.5, batch=4),
    replace(DECODING, stall=0.2, compute=0.8, batch=5, period_us=SLOW_PERIOD),
    replace(DECODING, name="decode-1w-spawn", start="spawn", stall=0.75, compute=0.25, batch=10),
    replace(DECODING, name="decode-2w", causes=(Cause.CPU,), workers=2, stall=0.3, compute=0.7, batch=16),
    replace(DECODING, name="decode-1w-one-core", causes=(Cause.CPU,), stall=0.6, compute=0.4, extra="one-core"),
    replace(DECODING, name="decode-2w-quota", causes=(Cause.CPU,), workers=2, compute=0.4, extra="quota"),
    replace(DECODING, name="decode-1w-taken", causes=(Cause.TAKEN,), stall=0.4, compute=0.6, extra="taken"),
    Program("hangs", STALLED, extra="hangs", device=False),
    replace(_input("collate-1w", 0.3, "collate", Cause.COLLATE), cost_s=0.09),
    replace(_input("pickle-1w", 0.35, "pickle", Cause.COLLATE), cost_s=0.08),
    Program("epoch-start", INPUT, (Cause.EPOCH_START,), 0.2, "start", persistent=False, batches=40),
    replace(STEADY, name="validation", extra="validation", step_s=0.1, batches=50),
    replace(STEADY, name="checkpoint", extra="checkpoint", step_s=0.03, wait="never", batches=120),
    Program("item-loop", SYNC, step_s=0.05, kernels=20, ops=300, wait="loop"),
    replace(STEADY, step_s=0.2),
    replace(STEADY, name="accumulate", extra="accumulate", step_s=0.03, wait="never", load="sleep", cost_s=0.01),
    replace(STEADY, name="compute-spin", spin=True, step_s=0.03),
    replace(STEADY, name="compute-host-waits", load="sleep", workers=0, compute=1.25, wait="never", cost_s=0.08),
    Program("two-loaders", INPUT, (Cause.STORAGE,), 0.5, "sleep", compute=0.5, extra="second-loader", cost_s=0.1),
    replace(STEADY, name="idle-loader", extra="idle-loader", step_s=0.09),
    _input("pin-thread", 0.3, "copy", Cause.PIN),
    Program("launch", LAUNCH, step_s=0.012, kernels=60, ops=130, wait="never"),
    replace(DECODING, name="cpu-decode", device=False, stall=0.3, compute=7 / 3, workers=0, causes=(Cause.SINGLE,)),
    replace(STEADY, name="cpu-compute", device=False, load="sleep", cost_s=0.01, step_s=0.05),
    replace(DECODING, name="fast-1t", loader="fast", stall=0.3, compute=0.7, batch=64),
    replace(STEADY, name="fast-compute", loader="fast", load="decode", step_s=0.25, batch=24, wait="never"),
    replace(DECODING, name="webdataset-1w", loader="webdataset", stall=0.55, compute=0.45),
)


def _changing(stalls: tuple[float, ...], costs: tuple[float, ...], batches: tuple[int, ...]) -> tuple[Program, ...]:
    """Programs for predictions, which are compared with changed ones: input-bound, by what the model knows."""
    sleeping = [
        replace(SLEEPING, name=f"sleep-{workers}w-{number}", workers=workers, stall=stall, compute=1 - stall,
                cost_s=workers * cost, wait=("step", "never")[number % 2], spin=number == 2)
        for number, (workers, stall, cost) in enumerate(zip((1, 1, 1, 2, 2, 3), stalls * 2, costs * 2, strict=True))
    ]  # fmt: skip
    decoding, inline, shards = (
        [replace(base, name=f"{name}-{number}", stall=stall, compute=part(stall), batch=batch, workers=workers)
         for number, (stall, batch) in enumerate(zip(stalls, batches, strict=True))]
        for base, name, workers, part in (
            (DECODING, "decode-1w", 1, lambda stall: 1 - stall),
            (INLINE, "decode-0w", 0, lambda stall: (1 - stall) / stall),
            (replace(DECODING, loader="webdataset"), "webdataset-1w", 1, lambda stall: 1 - stall),
        )
    )  # fmt: skip
    first, second, third = stalls
    others = [
        replace(DECODING, name="decode-1w-spawn", start="spawn", stall=first, compute=1 - first, batch=batches[1]),
        replace(DECODING, name="decode-1w-one-core", compute=1 - second, extra="one-core"),
        replace(DECODING, name="decode-2w", workers=2, compute=1 - third, batch=batches[2]),
        replace(shards[0], name="webdataset-2w-0", workers=2, compute=1 - second),
        replace(shards[1], name="webdataset-2w-1", workers=2, compute=1 - third),
        replace(_input("store-2w", first, "store", Cause.STORAGE), workers=2, cost_s=2 * costs[0]),
        replace(_input("store-1w", second, "store", Cause.STORAGE), cost_s=costs[1]),
        replace(DECODING, name="cpu-decode-1w", device=False, compute=0.0, step_s=costs[0] / 2),
        replace(DECODING, name="cpu-decode-2w", device=False, compute=0.0, step_s=costs[1] / 2, workers=2),
    ]
    return (*sleeping, *decoding, *inline, *shards, *others)


SUITES: Final = {
    "final": JUDGED,
    "change-tune": _changing((0.35, 0.5, 0.65), (0.05, 0.08, 0.12), (6, 8, 12)),
    "change-final": _changing((0.3, 0.45, 0.7), (0.06, 0.1, 0.15), (5, 10, 16)),
}
