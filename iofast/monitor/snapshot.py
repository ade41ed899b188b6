"""What the probes found in one interval, and nothing that they did not: `None` stands for "not available" everywhere.

A `Snapshot` is about one job: a training process (one rank) with its loader's worker processes. It is plain data, made
of numbers and strings: `verdict.classify` judges a list of them without a clock, tests write them by hand, and `--json`
prints them. Shares are 0 to 1 of the interval, times are seconds, sizes bytes; counts and times are of this interval.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Tier(StrEnum):
    """How much could be seen, from least to most; a verdict names the one it rests on."""

    OUTSIDE = "proc"  # /proc and NVML: no ptrace, no root, nothing in the process
    STACKS = "stacks"  # and Python stacks, by py-spy
    INSIDE = "inside"  # and the counters of FastLoader or watch(), by the telemetry page


class Doing(StrEnum):
    """What the training thread was seen at, from outside. Of one sample exactly one is true."""

    RUNNING = "running"  # on a processor or queued for one: Python, launches, or a synchronisation that spins
    QUEUE = "queue"  # asleep in poll, or reading a socket or pipe: a worker's queue
    FUTEX = "futex"  # asleep on a lock: a queue within the process (pin thread, FastLoader), backward, or a device
    DISK = "disk"  # waits for a disk: state D
    ASLEEP = "asleep"  # asleep elsewhere: in the driver, in a timer
    STOPPED = "stopped"  # by a signal or a debugger


class Frame(StrEnum):
    """What the training thread's Python stack says it was at. Of one look exactly one is true."""

    LOADER_WAIT = "loader-wait"  # in next(loader), waiting for workers or for a thread
    LOADER_INLINE = "loader-inline"  # in next(loader), doing a worker's work itself
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
    WAITING = "waiting"  # in a queue, a lock, a socket or a timer, of which nothing says whether it is the loader's
    OTHER = "other"


LOADER = frozenset({Frame.LOADER_WAIT, Frame.LOADER_INLINE, Frame.LOADER_START})


class WaitSource(StrEnum):
    """What the call waits for in which a thread was seen, by the library that the call belongs to."""

    THREADS = "threads"  # of this process: a queue, a lock, a future
    PROCESSES = "processes"  # that multiprocessing or subprocess started
    SOCKET = "socket"  # another program: a socket, ZeroMQ, gRPC
    EVENTS = "events"  # of an asyncio loop
    FILE = "file"  # reads by itself
    TIMER = "timer"  # sleeps by itself
    NONE = "none"  # works by itself


class WorkerTask(StrEnum):
    """What a loader's worker process or thread was seen at."""

    READ = "read"
    DECODE = "decode"
    RESIZE = "resize"
    AUGMENT = "augment"
    COLLATE = "collate"
    SEND = "send"  # handing a batch over: pickling, shared memory, a full queue
    STARVED = "starved"  # nothing to do: enough is ready
    PIN = "pin"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Job:
    """The process that is watched. All text comes from it and is not to be trusted on a terminal or a page."""

    pid: int
    start_time: int  # of /proc/<pid>/stat, in ticks since boot: with the pid it names a process for good
    command: str
    rank: int | None = None
    world_size: int | None = None


@dataclass(frozen=True, slots=True)
class Looks:
    """Samples of one thread's state. `shares` add up to 1 where there are any samples."""

    samples: int
    shares: dict[Doing, float]
    cpu_s: float | None = None  # the thread's own time on a processor, exact where shares are samples,
    runnable_s: float | None = None  # and waiting for one; both are RUNNING


@dataclass(frozen=True, slots=True)
class Window:
    """A short stretch with one reading of the device: the narrower, the tighter what the two shares say together.

    `wait_low` and `wait_high` are bounds of the share that the training thread waited for its loader, `idle` is the
    share that the device ran nothing (None: no device can be seen). Where `looks` and `doing` say how many samples of
    the training thread fell into the window and what they saw, the bounds are drawn from these instead.
    """

    seconds: float
    wait_low: float
    wait_high: float
    idle: float | None
    looks: int = 0
    doing: dict[Doing, float] = field(default_factory=dict)  # shares of `looks`


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """A process of the job. `role`: main, worker (a loader's), pin (never a process: see `threads`), other."""

    pid: int
    start_time: int
    role: str
    name: str
    cpu_s: float  # user and system
    runnable_s: float | None  # waiting for a processor
    states: dict[str, float]  # share of samples by letter: R S D T
    read_bytes: int | None  # from the disk
    read_calls_bytes: int | None  # rchar: what read() returned, from disk, cache, pipes
    write_bytes: int | None
    major_faults: int | None
    threads: int
    numa_node: int | None = None  # of the processor that it last ran on


@dataclass(frozen=True, slots=True)
class ThreadFigures:
    """A thread of the training process that belongs to a loader or to PyTorch: pt_data_pin, pt_autograd_0, iofast-3."""

    tid: int
    name: str
    cpu_s: float
    states: dict[str, float]


@dataclass(frozen=True, slots=True)
class SystemFigures:
    """The machine as this job has it."""

    cores: float  # that affinity and cgroup give the job
    idle_cores: float | None  # of them, unused in this interval by anybody
    throttled_s: float | None  # that the cgroup's quota kept the job's threads waiting
    pressure_cpu: float | None  # PSI some, share of the interval
    pressure_io: float | None
    memory_available: int | None
    page_cache: int | None
    disk_read_bytes: int | None  # of all disks
    disk_busy: float | None  # of the busiest
    numa_nodes: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """One GPU, or one MIG instance of it."""

    index: int
    name: str
    uuid: str
    busy: float | None  # share of the time that a kernel ran
    sm_active: float | None
    tensor_active: float | None
    dram_active: float | None
    pcie_rx_bytes: int | None  # host to device
    pcie_bytes_per_s: float | None  # what the link can carry in one direction
    power_w: float | None
    power_limit_w: float | None
    memory_used: int | None
    memory_total: int | None
    throttle_reasons: tuple[str, ...]  # power, thermal, hardware; () none, also where unknown
    own: bool | None  # whether this job's process is seen on it; None: the driver does not say (containers)
    others: int | None  # processes on it that are not this job's
    mig: bool = False
    jpeg_busy: float | None = None
    numa_node: int | None = None
    capability: tuple[int, int] | None = None  # CUDA's: (8, 0) for an A100


@dataclass(frozen=True, slots=True)
class SyncSite:
    """A line of the user's code at which the host waits for the device."""

    file: str
    line: int
    call: str  # .item(), .cpu(), ...
    share: float  # of the looks


@dataclass(frozen=True, slots=True)
class WaitSite:
    """A line of the user's code at which the training thread waits, or makes a batch by itself.

    `function` is the one that the line is in, `call` what it calls there ("" where it works), `loader` whether a
    training loop gets its batch there; if not, nothing says what the wait is for.
    """

    file: str
    line: int
    function: str
    call: str  # queue.get, multiprocessing.Queue.get, time.sleep, ...
    source: WaitSource
    loader: bool
    share: float  # of the looks


@dataclass(frozen=True, slots=True)
class StackFigures:
    """What stacks of a burst said."""

    looks: int  # of the training thread
    main: dict[Frame, float]
    worker_looks: int
    workers: dict[WorkerTask, float]
    syncs: tuple[SyncSite, ...] = ()
    waits: tuple[WaitSite, ...] = ()
    trains: bool = False  # a training loop, a backward pass or an optimizer was seen
    single_tensor_optimizer: bool = False  # an optimiser that launches per parameter was seen
    anomaly_detection: bool = False
    convolutions: bool = False  # torch/nn/modules/conv.py was seen
    compiled: bool = False  # torch/_dynamo or torch/_inductor was seen


@dataclass(frozen=True, slots=True)
class LoaderFigures:
    """A loader that reports from inside, in this interval."""

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
    wait_s: float  # host wait in next(), added up
    exposed_s: float | None  # the device's idle time for want of a batch, by CUDA events
    transfer_s: float | None  # the part of it in which the batch was there and its copy was not
    phases: dict[str, float]  # seconds by name of meter.step, of those that were entered
    phases_on_device: bool
    stages: dict[str, float]  # seconds of work by stage: read, decode, transfer
    failed: int = 0
    live: bool = True
    steps: int = 0  # that `step_s` is the mean of: the first batch of an epoch ends none
    device_step_s: float | None = None  # device time of steps that `exposed_s` is a part of: it comes some steps later
    epoch_start_s: float = 0.0  # in next() for first batches of epochs and at their ends: not in `wait_s`, `step_s`


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One interval of one job."""

    time_s: float  # monotonic, its end
    seconds: float
    job: Job
    main: Looks
    windows: tuple[Window, ...]
    processes: tuple[ProcessFigures, ...]
    threads: tuple[ThreadFigures, ...]
    system: SystemFigures
    devices: tuple[DeviceFigures, ...] = ()
    stacks: StackFigures | None = None
    loaders: tuple[LoaderFigures, ...] = ()
    dataset_paths: tuple[str, ...] = ()  # open files of the workers, folders of them: for advice
    notes: tuple[str, ...] = ()  # one line for each thing that could not be looked at, and what would allow it
    peers: dict[int, float] = field(default_factory=dict)  # other ranks on this machine: waiting share by rank
    file_bytes: int | None = None  # median size of the images that workers were seen to have open
