"""Why a loader is late: one cause, and the figures that show it.

The rules are tried in order of certainty: one rank is later than the others, another program feeds the loader, the
training thread loads by itself, the pin thread is the bottleneck, then the work of threads and of worker processes.
Workers on a processor are the limit, with cores left or without. Workers off the processor wait for storage, unless
stacks show them collating or sending; a network file system leaves no other trace than sleep.

If the loader is the program's own, the line at which the training thread waits shows what feeds it: threads, child
processes, or another program behind a socket, which cannot be looked into.
"""

from __future__ import annotations

from math import fsum

from iofast.monitor.findings import Cause, Evidence
from iofast.monitor.snapshot import Doing, Frame, WaitSite, WaitSource, WorkerTask, traffic_of
from iofast.monitor.training import Training, Workers

_FEW = 8  # stack samples below which an absence means nothing
_CACHED = 0.9  # hit rate of an object store's cache above which the cache's disk is what is slow
_TWICE = 1.5  # stack samples: something seen once may be chance
_CPU_WORK = (WorkerTask.DECODE, WorkerTask.RESIZE, WorkerTask.AUGMENT)
_THREADS = (WaitSource.THREADS, WaitSource.EVENTS, WaitSource.PROCESSES)  # multiprocessing has pools of threads too
Found = tuple[Cause | None, tuple[Evidence, ...]]


def find_cause(training: Training) -> Found:
    """Cause of a stall with its evidence; None if no rule applies."""
    found: Found = None, ()
    for rule in (_rank_skew, _feeder, _single, _pin, _threads, _silent_threads, _worker_processes):
        found = rule(training)
        if found[0] is not None:
            break
    return found


def longest_wait(training: Training) -> WaitSite | None:
    """Line at which the training thread waits longest, or makes its batches; None below the notice threshold."""
    thresholds = training.thresholds
    return next((site for site in training.waits if site.share >= thresholds.notice), None)


def waiting(site: WaitSite) -> str:
    """Describe the line `site` in a clause."""
    does = "waits" if site.call else "makes its batches"
    return f"the training thread {does} in {site.place}, {site.share:.0%} of the time"


def _feeder(training: Training) -> Found:
    """Another program sends the batches. If it is a child process, its processor time is known."""
    thresholds = training.thresholds
    site = longest_wait(training)
    if site is None or not site.loader or site.source not in (WaitSource.SOCKET, WaitSource.PROCESSES):
        return None, ()
    if training.worker_count or (site.source is WaitSource.PROCESSES and training.other_threads >= thresholds.part):
        return None, ()
    name, cpu = training.busiest_child
    used = Evidence("child_cpu", cpu, f"{name}, which it started, is on a processor {cpu:.0%} of the time")
    if cpu >= thresholds.half:
        cause, cores = _cores(training)
        return cause, (used, *cores)
    return Cause.FEEDER, (used,) if name else ()


def _rank_skew(training: Training) -> Found:
    """This rank waits for its data, and the others wait for this rank."""
    thresholds = training.thresholds
    peers = [share for one in training.snapshots[-1:] for share in one.peers.values()]
    own = training.waiting
    if not peers or own - max(peers) < max(thresholds.bound, 0.5 * own):
        return None, ()
    text = f"this rank waits {own:.0%} of the time, the other ranks on this machine at most {max(peers):.0%}"
    return Cause.RANK_SKEW, (Evidence("rank_gap", own - max(peers), text),)


def _single(training: Training) -> Found:
    """The training thread loads its samples itself."""
    thresholds = training.thresholds
    loading = training.frames(Frame.LOADER_INLINE)
    waiting = training.frames(Frame.LOADER_WAIT) or 0.0
    if loading is not None and (loading or waiting or training.frame_looks >= _FEW):
        if loading < thresholds.notice or loading <= waiting:
            return None, ()
        text = (
            f"the training thread was loading samples itself in {loading:.0%} of {training.frame_looks} stack samples"
        )
        return Cause.SINGLE, (Evidence("loader_inline", loading, text),)
    threads = training.thread_cpu("iofast") is not None or any(
        one.kind == "FastLoader" and one.num_workers != 0 for one in training.loaders
    )
    if training.worker_count or threads or any(one.num_workers for one in training.loaders):
        return None, ()
    running = training.doing[Doing.RUNNING] + training.doing[Doing.DISK]
    asleep = training.doing[Doing.ASLEEP] + training.doing[Doing.UNSEEN]
    if running + asleep < thresholds.notice or training.other_threads >= max(thresholds.part, running):
        return None, ()  # an unknown loader of threads
    text = f"there are no loader workers; the training thread was running or reading {running:.0%} of the time"
    return Cause.SINGLE, (Evidence("workers", 0.0, text),)


def _pin(training: Training) -> Found:
    thresholds = training.thresholds
    cpu = training.thread_cpu("pt_data_pin")
    workers = training.workers
    pinning = training.work.get(WorkerTask.PIN, 0.0)
    if pinning >= thresholds.work and pinning * training.work_looks >= _TWICE and cpu is not None:
        return Cause.PIN, (Evidence("pin", pinning, f"the pin thread was at work in {pinning:.0%} of stack samples"),)
    if cpu is None or (workers is not None and workers.busy >= 0.85):
        return None, ()
    # If all threads are short of cores, the pin thread is the limit if it uses more than a worker.
    most = cpu >= thresholds.part and workers is not None and cpu >= 1.5 * workers.cpu
    if cpu < thresholds.half and not most:
        return None, ()
    return Cause.PIN, (Evidence("pin_cpu", cpu, f"the pin thread is on a processor {cpu:.0%} of the time"),)


def _threads(training: Training) -> Found:
    """A loader of threads that reports its stages (FastLoader)."""
    stages: dict[str, float] = {}
    threads = 0
    for one in training.loaders:
        threads = max(threads, one.num_workers or 0)
        for name, seconds in one.stages.items():
            stages[name] = stages.get(name, 0.0) + seconds
    work = stages.get("read", 0.0) + stages.get("decode", 0.0)
    if training.worker_count or work <= 0:
        return None, ()
    read = stages.get("read", 0.0) / work
    busy = work / (threads * training.seconds) if threads else None
    at_work = f", and its {threads} threads work {min(1.0, busy):.0%} of the time" if busy is not None else ""
    evidence = (Evidence("read_share", read, f"reading is {read:.0%} of the loader's work{at_work}"),)
    if read >= 0.5:
        remote = _remote(training)
        return (Cause.REMOTE if remote else Cause.STORAGE), evidence + remote
    cause, cores = _cores(training)
    return cause, evidence + cores


def _remote(training: Training) -> tuple[Evidence, ...]:
    """Figures of an object store, if the loader waits for it rather than for the cache's disk."""
    asked = traffic_of(training.snapshots)
    if asked is None or not (asked.gets or asked.retries) or (asked.hit_rate or 0.0) > _CACHED:
        return ()
    rate = asked.bytes / training.seconds / 1e6
    found = [Evidence("store_rate", rate, f"the object store delivers {rate:.0f} MB/s in {asked.gets:,} requests")]
    if asked.median_s is not None and asked.p99_s is not None:
        median, late = 1e3 * asked.median_s, 1e3 * asked.p99_s
        text = f"its median answer takes {median:.0f} ms, the slowest of a hundred {late:.0f} ms"
        found.append(Evidence("store_answer", asked.median_s, text))
    if asked.hit_rate is not None:
        text = f"{asked.hit_rate:.0%} of the bytes read are in the cache"
        found.append(Evidence("store_hits", asked.hit_rate, text))
    if asked.retries:
        text = f"{asked.retries:,} requests failed and were repeated"
        found.append(Evidence("store_retries", float(asked.retries), text))
    return tuple(found)


def _silent_threads(training: Training) -> Found:
    """A loader of threads that reports nothing: another library's or the program's own."""
    thresholds = training.thresholds
    others, seen = training.other_threads, training.work
    fed = any(site.loader and site.source in _THREADS for site in training.waits[:1])
    if any(any(one.stages.values()) for one in training.loaders):  # `watch()` reports stages of 0
        return None, ()
    if training.worker_count and not (fed and others >= thresholds.half):
        return None, ()  # processes do the work, and threads only hand it over
    if not fed and others < (thresholds.notice if seen else thresholds.part):
        return None, ()
    used = Evidence("thread_cpu", others, f"other threads of the training process use {others:.2f} cores")
    computing = fsum(seen.get(what, 0.0) for what in _CPU_WORK)
    asleep = others < (thresholds.part if computing >= thresholds.work else thresholds.half)
    if (seen.get(WorkerTask.READ, 0.0) > 0.5 and computing < thresholds.work) or (fed and asleep):
        return Cause.STORAGE, (used,)
    cause, cores = _cores(training)
    return cause, (used, *cores)


def _worker_processes(training: Training) -> Found:
    thresholds = training.thresholds
    workers = training.workers
    if workers is None:
        return None, ()
    cpu = Evidence(
        "worker_cpu",
        workers.cpu,
        f"{workers.count} worker{'s' * (workers.count != 1)}, each on a processor {workers.cpu:.0%} of the time",
    )
    work = training.work
    handing = work.get(WorkerTask.COLLATE, 0.0) + work.get(WorkerTask.SEND, 0.0)
    computing = fsum(work.get(what, 0.0) for what in _CPU_WORK)
    met = handing * training.work_looks >= _TWICE
    if met and handing >= thresholds.work and handing > max(computing, work.get(WorkerTask.READ, 0.0)):
        return Cause.COLLATE, (
            cpu,
            Evidence("collate", handing, f"workers spend {handing:.0%} of their work on collating and handing over"),
        )
    disk = _disk(training, workers)
    cold = disk[0] is not None and (workers.disk >= thresholds.part or workers.cpu < thresholds.half)
    if cold:
        return disk[0], (cpu, *disk[1])
    throttled = training.throttled
    # A worker may be out of work while it is watched; stacks then show what it does otherwise.
    reading = bool(work) and work.get(WorkerTask.READ, 0.0) > computing
    on_cpu = workers.busy >= thresholds.half or throttled >= thresholds.bound
    if on_cpu or (work and computing >= thresholds.work and workers.cpu >= thresholds.part and not reading):
        cause, cores = _cores(training, workers)
        return cause, (cpu, *cores)
    asleep = 1 - workers.busy
    if workers.calls == 0 and not (workers.reads or workers.disk or work.get(WorkerTask.READ)):
        text = f"workers are not on a processor {asleep:.0%} of the time, and read nothing"
        return None, (cpu, Evidence("worker_asleep", asleep, text))
    text = f"workers are not on a processor {asleep:.0%} of the time: they wait for what they read"
    return Cause.STORAGE, (cpu, Evidence("worker_asleep", asleep, text), *disk[1])


def _disk(training: Training, workers: Workers) -> Found:
    """Whether bytes come from the disk, and whether the page cache should have held them."""
    thresholds = training.thresholds
    evidence = []
    faults = (workers.faults or 0) / training.seconds if training.seconds else 0.0
    if faults >= thresholds.faults:
        evidence.append(Evidence("major_faults", faults, f"{faults:.0f} page faults a second wait for the disk"))
    uncached = workers.reads / workers.calls if workers.reads is not None and workers.calls else None
    if workers.disk >= thresholds.part:
        evidence.append(Evidence("worker_disk", workers.disk, f"workers wait for a disk {workers.disk:.0%} of time"))
    if uncached is not None and uncached >= thresholds.part:
        shown = min(1.0, uncached)
        evidence.append(Evidence("uncached", shown, f"{shown:.0%} of the bytes that workers read come from the disk"))
    if not evidence:
        return None, ()
    available = training.system(lambda one: one.system.memory_available)
    again = any((one.epoch or 0) >= 1 for one in training.loaders)
    short = available is not None and available < thresholds.memory_short
    if short and available is not None:
        text = f"{available / 2**30:.1f} GiB of memory are left for the page cache"
        evidence.append(Evidence("memory_available", available, text))
    if faults >= thresholds.faults or (uncached is not None and uncached >= thresholds.part and (short or again)):
        return Cause.PAGE_CACHE, tuple(evidence)
    return Cause.STORAGE, tuple(evidence)


def _cores(training: Training, workers: Workers | None = None) -> Found:
    """Processor time is the limit: with cores left (WORKERS), without (CPU), or because others have them (TAKEN)."""
    thresholds = training.thresholds
    throttled = training.throttled
    if throttled >= thresholds.bound:
        text = f"the cgroup's CPU quota kept the job waiting {throttled:.0%} of the time"
        return Cause.CPU, (Evidence("throttled", throttled, text),)
    if training.taken is not None:
        return Cause.TAKEN, ()  # every verdict has this figure
    idle = training.system(lambda one: one.system.idle_cores)
    queued = workers.runnable if workers is not None else None
    if queued is not None and queued >= thresholds.part:
        text = f"workers are ready to run and have no processor {queued:.0%} of the time"
        return Cause.CPU, (Evidence("runnable", queued, text),)
    if idle is None:
        return None, ()
    cores = training.system(lambda one: one.system.cores) or 0.0
    text = f"{idle:.1f} of {cores:g} cores are idle"
    return (Cause.WORKERS if idle >= thresholds.cores_free else Cause.CPU), (Evidence("idle_cores", idle, text),)
