"""Why a loader is late: one cause, and the figures that show it.

The rules are tried in order of certainty: one rank is later than the others, another program feeds the loader, the
training thread loads by itself, the pin thread is the bottleneck, then the work of threads and of worker processes.
Workers on a processor are the limit, with cores left or without. Workers off the processor wait for storage, unless
stacks show them collating or sending; a network file system leaves no other trace than sleep.
"""

from math import fsum

from iofast.monitor import thresholds
from iofast.monitor.findings import Cause, Evidence
from iofast.monitor.snapshot import Doing, Frame, WaitSite, WaitSource, WorkerTask, traffic_of
from iofast.monitor.training import FEW, TWICE, Training, Workers

_BUSY = 0.85  # of a worker's time: it never rests
_CACHED = 0.9  # hit rate of an object store's cache above which the cache's disk is what is slow
_CPU_WORK = (WorkerTask.DECODE, WorkerTask.RESIZE, WorkerTask.AUGMENT)
_THREADS = (WaitSource.THREADS, WaitSource.EVENTS, WaitSource.PROCESSES)  # multiprocessing has pools of threads too
Found = tuple[Cause | None, tuple[Evidence, ...]]
_NOTHING: Found = None, ()


def find_cause(training: Training) -> Found:
    """Cause of a stall with its evidence; None if no rule applies."""
    found = _NOTHING
    for rule in (_rank_skew, _feeder, _single, _pin, _threads, _silent_threads, _worker_processes):
        found = rule(training)
        if found[0] is not None:
            break
    return found


def waiting(site: WaitSite) -> str:
    """Describe the line `site` in a clause."""
    does = "waits" if site.call else "makes its batches"
    return f"the training thread {does} in {site.place}, {site.share:.0%} of the time"


def _rank_skew(training: Training) -> Found:
    """This rank waits for its data, and the others wait for this rank."""
    peers = [share for one in training.snapshots[-1:] for share in one.peers.values()]
    own = training.waiting
    if not peers or own - max(peers) < max(training.bound, 0.5 * own):
        return _NOTHING
    text = f"this rank waits {own:.0%} of the time, the other ranks on this machine at most {max(peers):.0%}"
    return Cause.RANK_SKEW, (Evidence("rank_gap", own - max(peers), text),)


def _feeder(training: Training) -> Found:
    """Another program sends the batches. If it is a child process, its processor time is known."""
    site, processes = training.longest_wait, WaitSource.PROCESSES
    if site is None or not site.loader or site.source not in (WaitSource.SOCKET, processes) or training.worker_count:
        return _NOTHING
    if site.source is processes and training.other_threads >= thresholds.PART:
        return _NOTHING
    name, cpu = training.busiest_child
    used = Evidence("child_cpu", cpu, f"{name}, which it started, is on a processor {cpu:.0%} of the time")
    if cpu >= thresholds.HALF:
        cause, cores = _cores(training)
        return cause, (used, *cores)
    return Cause.FEEDER, (used,) if name else ()


def _single(training: Training) -> Found:
    """The training thread loads its samples itself."""
    doing = training.doing
    loading, waits = training.frames(Frame.LOADER_INLINE), training.frames(Frame.LOADER_WAIT) or 0.0
    if loading is not None and (loading or waits or training.frame_looks >= FEW):
        if loading < thresholds.NOTICE or loading <= waits:
            return _NOTHING
        seen = f"{loading:.0%} of {training.frame_looks} stack samples"
        text = f"the training thread was loading samples itself in {seen}"
        return Cause.SINGLE, (Evidence("loader_inline", loading, text),)
    threads = training.thread_cpu("iofast") is not None or any(
        one.kind == "FastLoader" and one.num_workers != 0 for one in training.loaders
    )
    if training.worker_count or threads or any(one.num_workers for one in training.loaders):
        return _NOTHING
    running = doing[Doing.RUNNING] + doing[Doing.DISK]
    if running + doing[Doing.ASLEEP] + doing[Doing.UNSEEN] < thresholds.NOTICE:
        return _NOTHING
    if training.other_threads >= max(thresholds.PART, running):
        return _NOTHING  # an unknown loader of threads
    text = f"there are no loader workers; the training thread was running or reading {running:.0%} of the time"
    return Cause.SINGLE, (Evidence("workers", 0.0, text),)


def _pin(training: Training) -> Found:
    cpu, workers = training.thread_cpu("pt_data_pin"), training.workers
    if cpu is None:
        return _NOTHING
    pinning = training.work.get(WorkerTask.PIN, 0.0)
    if pinning >= thresholds.WORK and pinning * training.work_looks >= TWICE:
        return Cause.PIN, (Evidence("pin", pinning, f"the pin thread was at work in {pinning:.0%} of stack samples"),)
    if workers is not None and workers.busy >= _BUSY:
        return _NOTHING
    # If all threads are short of cores, the pin thread is the limit if it uses more than a worker.
    most = cpu >= thresholds.PART and workers is not None and cpu >= 1.5 * workers.cpu
    if cpu < thresholds.HALF and not most:
        return _NOTHING
    return Cause.PIN, (Evidence("pin_cpu", cpu, f"the pin thread is on a processor {cpu:.0%} of the time"),)


def _threads(training: Training) -> Found:
    """A loader of threads that reports its stages (FastLoader)."""
    read = fsum(one.stages.get("read", 0.0) for one in training.loaders)
    work = read + fsum(one.stages.get("decode", 0.0) for one in training.loaders)
    if training.worker_count or work <= 0:
        return _NOTHING
    threads = max(one.num_workers or 0 for one in training.loaders)
    busy = min(1.0, work / (threads * training.seconds)) if threads else 0.0
    at_work = f", and its {threads} threads work {busy:.0%} of the time" if threads else ""
    evidence = (Evidence("read_share", read / work, f"reading is {read / work:.0%} of the loader's work{at_work}"),)
    if read >= 0.5 * work:
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
        found.append(Evidence("store_hits", asked.hit_rate, f"{asked.hit_rate:.0%} of the bytes read are in the cache"))
    if asked.retries:
        text = f"{asked.retries:,} requests failed and were repeated"
        found.append(Evidence("store_retries", float(asked.retries), text))
    return tuple(found)


def _silent_threads(training: Training) -> Found:
    """A loader of threads that reports nothing: another library's or the program's own."""
    others, seen = training.other_threads, training.work
    fed = any(site.loader and site.source in _THREADS for site in training.waits[:1])
    if any(any(one.stages.values()) for one in training.loaders):  # `watch()` reports stages of 0
        return _NOTHING
    if training.worker_count and not (fed and others >= thresholds.HALF):
        return _NOTHING  # processes do the work, and threads only hand it over
    if not fed and others < (thresholds.NOTICE if seen else thresholds.PART):
        return _NOTHING
    used = Evidence("thread_cpu", others, f"other threads of the training process use {others:.2f} cores")
    working, reading = fsum(seen.get(what, 0.0) for what in _CPU_WORK), seen.get(WorkerTask.READ, 0.0)
    computing = working >= thresholds.WORK
    asleep = others < (thresholds.PART if computing else thresholds.HALF)
    # Threads that get few cores use little processor time too: then what stacks show them at decides.
    squeezed = training.taken is not None or training.throttled >= training.bound
    asleep &= not (squeezed and computing and working > reading)
    if (reading > 0.5 and not computing) or (fed and asleep):
        return Cause.STORAGE, (used,)
    cause, cores = _cores(training)
    return cause, (used, *cores)


def _worker_processes(training: Training) -> Found:
    workers, work = training.workers, training.work
    if workers is None:
        return _NOTHING
    text = f"{workers.count} worker{'s' * (workers.count != 1)}, each on a processor {workers.cpu:.0%} of the time"
    cpu = Evidence("worker_cpu", workers.cpu, text)
    read, handing = work.get(WorkerTask.READ, 0.0), work.get(WorkerTask.COLLATE, 0.0) + work.get(WorkerTask.SEND, 0.0)
    computing = fsum(work.get(what, 0.0) for what in _CPU_WORK)
    met = handing * training.work_looks >= TWICE
    if met and handing >= thresholds.WORK and handing > max(computing, read):
        text = f"workers spend {handing:.0%} of their work on collating and handing over"
        return Cause.COLLATE, (cpu, Evidence("collate", handing, text))
    cold, disk = _disk(training, workers)
    if cold is not None and (workers.disk >= thresholds.PART or workers.cpu < thresholds.HALF):
        return cold, (cpu, *disk)
    # A worker may be out of work while it is watched; stacks then show what it does otherwise.
    on_cpu = workers.busy >= thresholds.HALF or training.throttled >= training.bound
    queued = workers.runnable or 0.0
    taken = training.taken is not None and queued >= thresholds.PART and queued > workers.cpu
    on_cpu |= taken and queued >= 0.5 * (1.0 - workers.busy)  # a worker that sleeps for longer waits for its storage
    if on_cpu or (computing >= max(thresholds.WORK, read) and workers.cpu >= thresholds.PART):
        cause, cores = _cores(training, workers)
        return cause, (cpu, *cores)
    text = f"workers are not on a processor {1 - workers.busy:.0%} of the time"
    if workers.calls == 0 and not (workers.reads or workers.disk or read):
        return None, (cpu, Evidence("worker_asleep", 1 - workers.busy, f"{text}, and read nothing"))
    asleep = Evidence("worker_asleep", 1 - workers.busy, f"{text}: they wait for what they read")
    return Cause.STORAGE, (cpu, asleep, *disk)


def _disk(training: Training, workers: Workers) -> Found:
    """Whether bytes come from the disk, and whether the page cache should have held them."""
    evidence = []
    faults = (workers.faults or 0) / training.seconds
    uncached = min(1.0, (workers.reads or 0) / workers.calls) if workers.calls else 0.0
    if faults >= thresholds.FAULTS:
        evidence.append(Evidence("major_faults", faults, f"{faults:.0f} page faults a second wait for the disk"))
    if workers.disk >= thresholds.PART:
        evidence.append(Evidence("worker_disk", workers.disk, f"workers wait for a disk {workers.disk:.0%} of time"))
    if uncached >= thresholds.PART:
        text = f"{uncached:.0%} of the bytes that workers read come from the disk"
        evidence.append(Evidence("uncached", uncached, text))
    if not evidence:
        return _NOTHING
    available = training.memory_available
    again = any((one.epoch or 0) >= 1 for one in training.loaders)
    if available is not None and available < thresholds.MEMORY_SHORT:
        text = f"{available / 2**30:.1f} GiB of memory are left for the page cache"
        evidence.append(Evidence("memory_available", available, text))
        again = True
    cached = faults >= thresholds.FAULTS or (again and uncached >= thresholds.PART)
    return Cause.PAGE_CACHE if cached else Cause.STORAGE, tuple(evidence)


def _cores(training: Training, workers: Workers | None = None) -> Found:
    """Processor time is the limit: with cores left (WORKERS), without (CPU), or because others have them (TAKEN)."""
    throttled = training.throttled
    if throttled >= training.bound:
        text = f"the cgroup's CPU quota kept the job waiting {throttled:.0%} of the time"
        return Cause.CPU, (Evidence("throttled", throttled, text),)
    if training.taken is not None:
        return Cause.TAKEN, ()  # every verdict has this figure
    queued = (workers.runnable or 0.0) if workers is not None else 0.0
    if queued >= thresholds.PART:
        text = f"workers are ready to run and have no processor {queued:.0%} of the time"
        return Cause.CPU, (Evidence("runnable", queued, text),)
    idle = training.idle_cores
    if idle is None:
        return _NOTHING
    text = f"{idle:.1f} of {training.cores or 0.0:g} cores are idle"
    return (Cause.WORKERS if idle >= thresholds.CORES_FREE else Cause.CPU), (Evidence("idle_cores", idle, text),)
