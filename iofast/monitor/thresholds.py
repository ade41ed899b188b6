"""Every threshold of the judging, each with its source. The labelled suite is scored with these values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Shares of training time unless a unit says otherwise. "ours": chosen here, checked by the labelled suite.

    notice, severe  of a stall: XProf has 5 and 20 %, Kineto 5 %, TraceML 20 %
    bound           of a stall, and of every other reason to idle: TraceML, XProf's suggestions and Kineto have 10 %
    min_steps       TraceML asks for 20 steps before it calls anything critical
    min_seconds     if steps cannot be counted
    max_width       wider bounds of the stall are an abstention: ours
    z               standard errors of a share that was sampled: 97.7 % on either side
    margin          by which another verdict must exceed its threshold: ours
    part            of a thread's, a worker's or the cores' time or bytes, from which it counts: ours
    half            of a thread's time, of intervals, of a device's tensor cores: XProf has 50 %
    work            of what workers do, from which it is what makes them late: ours
    cores_free      cores that a further worker could use: ours
    faults          major page faults a second of all workers: ours; warm mappings have none
    memory_short    available bytes below which the page cache cannot hold a data set: ours
    idle_cpu        cores in use, below which nothing trains: ours; a tenth of it without stacks, which show waits
    """

    notice: float = 0.05
    bound: float = 0.10
    severe: float = 0.20
    min_steps: int = 20
    min_seconds: float = 30.0
    max_width: float = 0.40
    z: float = 2.0
    margin: float = 0.02
    part: float = 0.20
    half: float = 0.50
    work: float = 0.40
    cores_free: float = 0.5
    faults: float = 20.0
    memory_short: float = 1 << 30
    idle_cpu: float = 0.02


THRESHOLDS = Thresholds()
