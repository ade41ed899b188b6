"""Every number that the judging turns on, each with its source. Frozen: a suite is scored with what stands here."""

from __future__ import annotations

from dataclasses import dataclass, fields

from iofast.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Shares of training time unless a unit says otherwise. "ours": chosen here, checked by the labelled suite.

    Severity and bound (XProf 5 and 20 %, Kineto 5 %, TraceML 10 and 20 %, XProf's suggestions 10 %):
    notice, bound, severe

    open            a stall whose upper bound is below this, and whose middle is below `bound`, is none: ours; with 20 %
                    a program of the suite that stalls 15 % was called compute-bound

    Enough evidence:
    min_steps       TraceML asks for 20 steps before it calls anything critical
    min_seconds     where steps cannot be counted; at 20 looks a second a share of 0.5 is known to 0.04 by then, at the
                    4 a second of a machine on which a look is expensive to 0.09
    max_width       bounds of the stall that are wider say nothing (the issue's definition of an abstention)
    confidence_z    standard errors of a share: 97.7 % on either side
    chosen_z        the same, where the best of a few inequalities is taken
    margin          ours: by how much another verdict must win over the one before

    What else a device idles for (XProf: launch and collectives moderate from 3 %, high from 15 %):
    idle            a device that idles less is busy: 1 - the 90 % that TraceML and MLPerf Storage call compute-bound
    sync, transfer, communication   10 %, as TraceML for H2D, Kineto for communication
    link            of what PCIe can carry: ours, B.2 says "about 70 %"
    launch          ours: the device idles so long while the host runs
    launch_to_sync  ours: host work so many times the synchronisations means that launching is what takes the time
    minor           so many times the stall the device idles for launches or synchronisations that are the verdict: ours
    dram, tensor    memory-bound: XProf HBM above 70 % and MXU below 50 %
    clocks          of the intervals with a reason to throttle: "most of the time"
    quota           of time that the cgroup's quota kept threads waiting: ours
    rank_gap        waiting share that a rank has more than another: TraceML's straggler 10 %

    Why a loader is late:
    worker_busy     of a worker's time on a processor or queued for one: gpuprof 80 %, B.2 85 %
    worker_asleep   below this a worker is not what is slow: B.2 50 %
    cores_free      cores: less than half of one is nothing that a further worker could use: ours
    runnable        of a worker's time queued for a processor: ours
    disk            of a worker's time in state D: ours
    uncached        read_bytes / rchar: B.2 and F.2 0.3
    faults          major faults a second of all loaders: ours; warm mappings have none
    memory_short    bytes available, below which a page cache cannot hold a data set: ours
    collate         of what workers do when they do something: ours
    pin             of the pin thread's time on a processor: ours
    gap             of time between epochs: F.2 row 23 has 10 %

    Phases (ours): share of looks, or of samples, from which an interval belongs to one
    phase_frames, paused, burst_bytes (a second written), burst_ratio (to the median), warm_idle (more idle than later)

    Idle: below so many cores of CPU, and a device less busy than this, nothing trains: ours. Stacks show a training
    that waits; without them it takes less CPU than any loop uses
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
    disk: float = 0.20
    uncached: float = 0.30
    faults: float = 20.0
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
