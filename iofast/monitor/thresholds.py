"""Every threshold of the judging, each with its source. The labelled suite is scored with these values.

Shares of training time unless a unit says otherwise. "ours": chosen here, checked by the labelled suite.
"""

NOTICE = 0.05  # of a stall: XProf and Kineto
BOUND = 0.10  # of a stall, and of every other reason to idle: TraceML, XProf's suggestions and Kineto
SEVERE = 0.20  # of a stall: XProf and TraceML
MIN_STEPS = 20  # TraceML asks for as many before it calls anything critical
MIN_SECONDS = 30.0  # if steps cannot be counted
MAX_WIDTH = 0.40  # wider bounds of the stall are an abstention: ours
Z = 2.0  # standard errors of a share that was sampled: 97.7 % on either side
MARGIN = 0.02  # by which another verdict must exceed its threshold: ours
PART = 0.20  # of a thread's, a worker's or the cores' time or bytes, from which it counts: ours
HALF = 0.50  # of a thread's time, of intervals, of a device's tensor cores: XProf
WORK = 0.40  # of what workers do, from which it is what makes them late: ours
CORES_FREE = 0.5  # cores that a further worker could use: ours
FAULTS = 20.0  # major page faults a second of all workers: ours; warm mappings have none
MEMORY_SHORT = float(1 << 30)  # available bytes below which the page cache cannot hold a data set: ours
IDLE_CPU = 0.02  # cores in use, below which nothing trains: ours; a tenth of it without stacks, which show waits
