"""Snapshots: the readings of all probes in one interval, as plain data. `None` means not available.

A `Snapshot` describes one job: a training process (one rank) with its loader's worker processes. `verdict.classify`
judges a list of snapshots, tests write them by hand, and `--json` prints them. Shares are 0 to 1 of the interval, times
are seconds, sizes bytes; counts and times are those of the interval.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from iofast.meter.traffic import TrafficStats


class Tier(StrEnum):
    """Depth of view, from least to most."""

    OUTSIDE = "proc"  # /proc and NVML, without ptrace and root
    STACKS = "stacks"  # also Python stacks, by py-spy
    INSIDE = "inside"  # also the counters of FastLoader or watch(), from their page


class Doing(StrEnum):
    """State of the training thread in one sample, from outside."""

    RUNNING = "running"  # on a processor or queued for one: Python, launches, a synchronisation that spins
    QUEUE = "queue"  # asleep in poll, or reading a socket or pipe: the queue of a worker
    FUTEX = "futex"  # asleep on a lock: a queue within the process (pin thread, FastLoader), backward, or a device
    DISK = "disk"  # state D: waiting for a disk
    ASLEEP = "asleep"  # asleep elsewhere: the driver, a timer
    UNSEEN = "unseen"  # asleep, and the kernel does not show where
    STOPPED = "stopped"  # by a signal or a debugger


class Frame(StrEnum):
    """Activity of the training thread in one stack sample."""

    LOADER_WAIT = "loader-wait"  # in next(loader), waiting for workers or for a thread
    LOADER_INLINE = "loader-inline"  # in next(loader), loading samples itself
    LOADER_START = "loader-start"  # in iter(loader): starting workers
    TRANSFER = "transfer"  # .to(device), .cuda(), pin_memory
    SYNC = "sync"  # .item(), .cpu(), .tolist(), synchronize, print of a tensor
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    VALIDATION = "validation"
    CHECKPOINT = "checkpoint"  # torch.save and the like
    COMPILE = "compile"  # torch.compile, autotuning, imports
    COMMUNICATION = "communication"  # all_reduce, barrier
    WAITING = "waiting"  # in a queue, a lock, a socket or a timer that may or may not be the loader's
    OTHER = "other"


LOADER = frozenset({Frame.LOADER_WAIT, Frame.LOADER_INLINE, Frame.LOADER_START})


class WaitSource(StrEnum):
    """Source of a wait, by the library of the call that a thread was seen in."""

    THREADS = "threads"  # of this process: a queue, a lock, a future
    PROCESSES = "processes"  # that multiprocessing or subprocess started
    SOCKET = "socket"  # another program: a socket, ZeroMQ, gRPC
    EVENTS = "events"  # of an asyncio loop
    FILE = "file"  # reads by itself
    TIMER = "timer"  # sleeps by itself
    DEVICE = "device"  # .item(), .cpu() and the like
    NONE = "none"  # works by itself


class WorkerTask(StrEnum):
    """Task of a loader's worker process or thread in one stack sample."""

    READ = "read"
    DECODE = "decode"
    RESIZE = "resize"
    AUGMENT = "augment"
    COLLATE = "collate"
    SEND = "send"  # handing a batch over: pickling, shared memory, a full queue
    STARVED = "starved"  # nothing to do: enough batches are ready
    PIN = "pin"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Job:
    """The watched process. All text comes from it and must be escaped on a terminal or a page."""

    pid: int
    start_time: int  # of /proc/<pid>/stat, in ticks since boot; pid and start time identify a process
    command: str
    rank: int | None = None
    world_size: int | None = None


@dataclass(frozen=True, slots=True)
class Looks:
    """Samples of one thread's state, and its times. `shares` add up to 1 unless there are no samples."""

    samples: int
    shares: dict[Doing, float]
    cpu_s: float | None = None  # on a processor; exact, not sampled
    runnable_s: float | None = None  # queued for a processor; part of RUNNING, as cpu_s
    ticks_s: float = 0.0  # on a processor, as whole ticks count it
    states: dict[str, float] = field(default_factory=dict)  # share of samples by letter: R S D T


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """A process of the job. `role` is main, worker (of a loader) or other."""

    pid: int
    start_time: int
    role: str
    name: str
    cpu_s: float  # user and system
    runnable_s: float | None  # waiting for a processor
    states: dict[str, float]  # share of samples by letter: R S D T
    read_bytes: int | None  # from the disk
    read_calls_bytes: int | None  # rchar: bytes returned by read(), from disk, cache, pipes
    major_faults: int | None


@dataclass(frozen=True, slots=True)
class ThreadFigures:
    """A thread of the training process that belongs to a loader or to PyTorch: pt_data_pin, pt_autograd_0, iofast-3."""

    tid: int
    name: str
    cpu_s: float


@dataclass(frozen=True, slots=True)
class SystemFigures:
    """The machine, as far as this job may use it."""

    cores: float  # by affinity and cgroup
    idle_cores: float | None  # of these, unused by all processes
    throttled_s: float | None  # that the cgroup's quota kept threads waiting
    memory_available: int | None
    disk_read_bytes: int | None  # of all disks
    other_cores: float | None = None  # of these, used by other programs than the job and its ranks
    busiest: str | None = None  # the process that uses most of those: pid 123, python


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """One GPU."""

    index: int
    name: str
    uuid: str
    busy: float | None  # share of the time that a kernel ran
    sm_active: float | None
    tensor_active: float | None
    dram_active: float | None
    power_w: float | None
    power_limit_w: float | None
    memory_used: int | None
    memory_total: int | None
    throttle_reasons: tuple[str, ...]  # power, thermal, hardware; () also if unknown
    own: bool | None  # whether this job runs on it; None: the driver names no processes (containers)
    others: int | None  # other processes on it


@dataclass(frozen=True, slots=True)
class WaitSite:
    """A line of the program at which the training thread waits, also for the device, or makes a batch itself.

    `function` contains the line, `call` is the function called there ("" if the line works), `loader` says whether a
    training loop gets its batch there; otherwise the reason of the wait is unknown.
    """

    file: str
    line: int
    function: str
    call: str  # queue.get, multiprocessing.Queue.get, time.sleep, .item(), ...
    source: WaitSource
    loader: bool = False
    share: float = 0.0  # of the stack samples; 0 where they are counted

    @property
    def place(self) -> str:
        """Function and line, and the call that is waited for."""
        call = f", for `{self.call}`" if self.call else ""
        return f"`{self.function}`, {self.file.rpartition('/')[2]}:{self.line}{call}"


@dataclass(slots=True)
class StackFigures:
    """Stack samples of one or more bursts, counted."""

    main: Counter[Frame] = field(default_factory=Counter)  # of the training thread
    workers: Counter[WorkerTask] = field(default_factory=Counter)  # and of the loader's threads
    waits: Counter[WaitSite] = field(default_factory=Counter)
    stands: dict[int, WaitSite] = field(default_factory=dict)  # by pid: a place of its main thread
    trains: bool = False  # a training loop, a backward pass or an optimizer was seen
    compiled: bool = False  # torch/_dynamo or torch/_inductor was seen

    @property
    def looks(self) -> int:
        """Of the training thread."""
        return self.main.total()


@dataclass(frozen=True, slots=True)
class LoaderFigures:
    """Counters of a loader that reports from inside, of this interval."""

    name: str
    kind: str  # FastLoader, DataLoader, or the class
    num_workers: int | None
    prefetch: int | None
    batch_size: int | None
    device: str | None
    epoch: int | None
    batches: int
    images: int | None
    step_s: float | None  # mean
    wait_s: float  # host wait in next()
    exposed_s: float | None  # the device's wait for a batch, by CUDA events
    transfer_s: float | None  # the part of exposed_s after the batch was ready, until its copy was
    phases: dict[str, float]  # seconds by name of meter.step
    phases_on_device: bool
    stages: dict[str, float]  # seconds of work by stage: read, decode, transfer
    failed: int = 0
    live: bool = True
    steps: int = 0  # in `step_s`: the first batch of an epoch ends no step
    device_step_s: float | None = None  # device time of the steps in `exposed_s`, which lags by some steps
    epoch_start_s: float = 0.0  # in next() at starts and ends of epochs; not in `wait_s` and `step_s`
    traffic: TrafficStats | None = None  # of the whole process with object stores


@dataclass(frozen=True, slots=True)
class LoaderSource:
    """A DataLoader in the program's source: expressions, as they are written."""

    loader: str
    dataset: str
    batch_size: str
    shuffle: bool
    drop_last: bool
    side: int  # of its images, in pixels
    root: str  # folder of its data set; "" if the source does not have it


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One interval of one job."""

    time_s: float  # end of the interval, monotonic
    seconds: float
    job: Job
    main: Looks
    processes: tuple[ProcessFigures, ...]
    threads: tuple[ThreadFigures, ...]
    system: SystemFigures
    devices: tuple[DeviceFigures, ...] = ()
    stacks: StackFigures | None = None
    loaders: tuple[LoaderFigures, ...] = ()
    data_folder: str | None = None  # with most of the data files that workers had open
    notes: tuple[str, ...] = ()  # one line for each thing that could not be seen, and what would allow it
    peers: dict[int, float] = field(default_factory=dict)  # waiting share of other ranks on this machine, by rank
    file_bytes: int | None = None  # median size of the images that workers had open
    image_root: str | None = None  # folder of all its images; None if that is not certain
    source: LoaderSource | None = None  # None if the program's script cannot be read, or makes no DataLoader


def workers_of(snapshot: Snapshot) -> frozenset[tuple[int, int]]:
    """Pids and start times of the loader's workers."""
    return frozenset((one.pid, one.start_time) for one in snapshot.processes if one.role == "worker")


def own_devices(devices: Iterable[DeviceFigures]) -> list[DeviceFigures]:
    """Devices on which the job was seen; if it was seen on none, those whose processes the driver does not name."""
    every = [device for device in devices if device.own is not False]
    return [device for device in every if device.own] or every


def idle_of(snapshot: Snapshot) -> float | None:
    """Share of the interval in which the busiest of the job's devices ran nothing; None without a reading."""
    own = [device for device in snapshot.devices if device.own]
    seen = own or (snapshot.devices if len(snapshot.devices) == 1 else ())
    busy = [device.busy for device in seen if device.busy is not None]
    return clamped(1.0 - max(busy)) if busy else None


def traffic_of(snapshots: Iterable[Snapshot]) -> TrafficStats | None:
    """What a process asked of object stores in these intervals; None if nothing. Each of its loaders reports it."""
    total: TrafficStats | None = None
    for one in snapshots:
        asked = [loader.traffic for loader in one.loaders if loader.traffic is not None]
        if asked:
            own = max(asked, key=lambda each: each.counts)
            total = own if total is None else total.plus(own)
    return total


def clamped(value: float) -> float:
    """The share in [0, 1] nearest to `value`."""
    return min(1.0, max(0.0, value))
