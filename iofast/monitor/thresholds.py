"""Every threshold of the judging, each with its source. The labelled suite is scored with these values."""

from __future__ import annotations

from dataclasses import dataclass, fields

from iofast.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Shares of training time unless a unit says otherwise. "ours": chosen here, checked by the labelled suite.

    Severity and bound (XProf 5 and 20 %, Kineto 5 %, TraceML 10 and 20 %, XProf's suggestions 10 %):
    notice, bound, severe

    open            a stall with its upper bound below this and its middle below `bound` does not count: ours; with 20 %
                    a program of the suite that stalls 15 % was judged compute-bound

    Enough evidence:
    min_steps       TraceML asks for 20 steps before it calls anything critical
    min_seconds     if steps cannot be counted; a share of 0.5 is then known to 0.04 at 20 samples per second, to 0.09
                    at the 4 per second of a slow machine
    max_width       wider bounds of the stall are an abstention
    confidence_z    standard errors of a share: 97.7 % on either side
    chosen_z        the same for the best of several inequalities
    margin          by which another verdict must exceed its thresholds: ours

    Other reasons of a device to idle (XProf: launch and collectives moderate from 3 %, high from 15 %):
    idle            a device that idles less is busy: TraceML and MLPerf Storage have 90 % for compute-bound
    sync, transfer, communication   10 %, as TraceML for H2D, Kineto for communication
    link            of the capacity of PCIe: ours
    launch          idle share of the device while the host runs: ours
    launch_to_sync  ratio of launching to synchronisations from which launching is the limit: ours
    minor           ratio of other idle time to the stall from which the stall is not the limit: ours
    dram, tensor    memory-bound: XProf HBM above 70 % and MXU below 50 %
    clocks          of the intervals with a reason to throttle: "most of the time"
    quota           of time that the cgroup's quota kept threads waiting: ours
    rank_gap        waiting share that a rank has more than another: TraceML's straggler 10 %

    Why a loader is late:
    worker_busy     of a worker's time on a processor or queued for one: gpuprof 80 %, ours 85 %
    worker_asleep   a worker that is busy for less is not the limit: ours
    cores_free      cores that a further worker could use: ours
    runnable        of a worker's time queued for a processor: ours
    taken           of the cores, used by other programs while none is free: ours
    disk            of a worker's time in state D: ours
    uncached        read_bytes / rchar: ours
    faults          major faults per second of all workers: ours; warm mappings have none
    cached          hit rate of an object store's cache above which the cache's disk is what is slow: ours
    memory_short    available bytes below which the page cache cannot hold a data set: ours
    collate         of the workers' work: ours
    pin             of the pin thread's time on a processor: ours
    gap             of time between epochs: ours

    Phases (ours): share of samples from which an interval belongs to one
    phase_frames, paused, burst_bytes (written per second), burst_ratio (to the median), warm_idle (above later ones)

    Idle: with fewer cores in use and a device less busy, nothing trains: ours. Without stacks the limit is below what
    any loop uses, because a training that waits cannot be recognised
    idle_cpu, idle_cpu_unseen, idle_busy
    """

    notice: float = 0.05
    bound: float = 0.10
    severe: float = 0.20
    open: float = 0.15
    min_steps: int = 20
    min_seconds: float = 30.0
    max_width: float = 0.40
    confidence_z: float = 2.0
    chosen_z: float = 2.5
    margin: float = 0.02
    idle: float = 0.10
    sync: float = 0.10
    transfer: float = 0.10
    communication: float = 0.10
    link: float = 0.70
    launch: float = 0.10
    launch_to_sync: float = 3.0
    minor: float = 2.0
    dram: float = 0.70
    tensor: float = 0.50
    clocks: float = 0.50
    quota: float = 0.10
    rank_gap: float = 0.10
    worker_busy: float = 0.85
    worker_asleep: float = 0.50
    cores_free: float = 0.5
    runnable: float = 0.15
    taken: float = 0.25
    disk: float = 0.20
    uncached: float = 0.30
    faults: float = 20.0
    cached: float = 0.90
    memory_short: float = 1 << 30
    collate: float = 0.40
    pin: float = 0.60
    gap: float = 0.10
    phase_frames: float = 0.30
    paused: float = 0.50
    burst_bytes: float = 8 << 20
    burst_ratio: float = 10.0
    warm_idle: float = 0.30
    idle_cpu: float = 0.02
    idle_cpu_unseen: float = 0.002
    idle_busy: float = 0.01

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) >= 0:
                raise OptionError(
                    f"Thresholds.{field.name}: expected a number of at least 0, found {getattr(self, field.name)!r}"
                )
        if not self.notice <= self.bound <= self.severe:
            raise OptionError(
                f"Thresholds: expected notice <= bound <= severe, found {self.notice}, {self.bound}, {self.severe}"
            )


THRESHOLDS = Thresholds()
