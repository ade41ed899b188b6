"""Python stacks of a training and its workers, by py-spy, which reads their memory and never stops nor changes them.

A burst is one py-spy for the training and one for the next of its workers, at once: `record` with a number of looks, at
random distances, within three seconds. Starting it is what costs: 20 looks take 24 ms of processor time, and one `dump`
alone takes 13 ms (minimum of fifteen, a training with a few hundred modules). Nothing is written to disk. Bursts are so
rare that with the looks at /proc they cost less than 2 % of a core.
"""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from iofast.monitor.probe import frames, worker_tasks
from iofast.monitor.probe.calls import Call, Stack, parse, wait_of
from iofast.monitor.probe.loops import Feeds
from iofast.monitor.probe.states import folder, ptrace_scope
from iofast.monitor.snapshot import Frame, Job, StackFigures, WaitSource, WorkerTask

_SECONDS = 3  # of a burst, in whole ones: the same looks within one second see the same few steps
_LOOKS = 20  # in a burst; starting py-spy costs as much as 25 looks
_TIMEOUT_S = 10.0  # for a burst: py-spy looks up all symbols of a process before its first look
_LARGEST = 8 << 20  # bytes of py-spy's output
_BUDGET = 0.009  # of one core, py-spy's processes and ours: /proc and verdicts use as much
_AHEAD = 4  # bursts in advance, as users wait for the first verdict
_SHORTEST_S = 0.25  # between bursts
_AGAIN_S = 30.0  # after one that failed
_TRIES = 3  # of bursts that fail for an unknown reason
_FED_BY_THREADS = (WaitSource.THREADS, WaitSource.EVENTS)
_READING = (WaitSource.FILE, WaitSource.SOCKET, WaitSource.TIMER)
_YAMA = "kernel.yama.ptrace_scope"
_MISSING_RIGHT = {
    "1": f"{_YAMA} is 1: start the program with `iofast monitor -- python train.py`, or allow it (sudo sysctl"
    f" {_YAMA}=0)",
    "2": f"{_YAMA} is 2: only root may look (sudo)",
    "3": f"{_YAMA} is 3, which forbids it to everybody until the next boot",
}


class StackProbe:
    """Bursts of looks at one job, one at a time. `note` says in a line why there are none.

    After a refusal it does not try again.
    """

    def __init__(self, job: Job, *, wanted: bool = True) -> None:
        self._job = job
        self._program = pyspy() if wanted else None
        missing = wanted and self._program is None
        self.note = "no Python stacks: py-spy is not installed (pip install 'iofast[monitor]')" if missing else ""
        self._feeds = Feeds(job.pid)
        self._counts = StackCounts(self._feeds)  # of the bursts since the last take
        self._running: list[_Recording] = []  # of the training, and of a worker
        self._refused = self._workers_refused = False
        self._turn = self._failures = 0
        self._due_at = self._began = time.monotonic()
        self._cost_s = 0.0  # of this burst so far

    def look(self, workers: Sequence[int]) -> None:
        """Begin a burst at the training and at the next worker if it is time for one, or read one that has ended."""
        before, now = _spent_s(), time.monotonic()
        seen, ends = False, bool(self._running) and all(each.ended() for each in self._running)
        try:
            if ends:
                seen = self._read()
            elif not self._running and now >= self._due_at and not self._refused and self._program is not None:
                self._begin(self._program, workers, now)
        except (OSError, ValueError) as error:  # no descriptors or memory, or the output of another version of py-spy
            ends, self.note = True, f"no Python stacks: {error}"
        self._cost_s += _spent_s() - before
        if not ends:
            return
        apart = self._cost_s / _BUDGET * random.uniform(0.5, 1.5)  # so that bursts do not keep step with the training
        self._due_at = max(now + _SHORTEST_S, self._began + apart if self._turn >= _AHEAD else 0.0)
        if not seen:
            self._due_at = now + _AGAIN_S

    def hurry(self) -> None:
        """Begin the next burst at the next look, whatever the last one cost, and also if it failed."""
        self._due_at = time.monotonic()

    def take(self) -> StackFigures | None:
        """The figures of the bursts that were read since the last call."""
        counts, self._counts = self._counts, StackCounts(self._feeds)
        return counts.figures() if counts.seen.looks else None

    def close(self) -> None:
        """End a running burst."""
        for recording in self._running:
            recording.stop()
        self._running = []

    def _begin(self, program: str, workers: Sequence[int], now: float) -> None:
        pids = [self._job.pid]
        if workers and not self._workers_refused:
            pids.append(workers[self._turn % len(workers)])
        self._turn, self._began, self._cost_s = self._turn + 1, now, 0.0
        for pid in pids:
            self._running.append(_Recording(program, pid))

    def _read(self) -> bool:
        """Count what the burst saw. False if the training cannot be looked at: then `note` says why."""
        recorded, self._running = self._running, []
        (text, error), *others = [one.result() for one in recorded]
        counts, before = self._counts, self._counts.seen.looks
        for stack in parse(text):
            counts.add_training(stack, self._job.pid)
        if counts.seen.looks == before:
            self._failed(error)
            return False
        for worker, (text_of_worker, worker_error) in zip(recorded[1:], others, strict=True):
            counts.add_worker(worker.pid, parse(text_of_worker))
            self._workers_refused |= not text_of_worker and _forbidden(worker_error)
        self._failures = 0
        self.note = f"no Python stacks of its workers: {missing_right(of_worker=True)}" if self._workers_refused else ""
        return True

    def _failed(self, error: str) -> None:
        self._failures += 1
        pid = self._job.pid
        if not folder(pid).exists() or "check that the process is running" in error.lower():  # or is a zombie
            self.note = f"no Python stacks: process {pid} has ended"
        elif _forbidden(error):
            self._refused = True
            self.note = f"no Python stacks: {missing_right()}"
        else:
            self._refused = self._failures >= _TRIES
            line = next((line for line in error.splitlines() if line.strip()), "it saw no Python thread").strip()
            self.note = f"no Python stacks of process {pid}: py-spy: {line.removeprefix('Error: ')[:200]}"


class StackCounts:
    """Looks of one or more bursts, counted by what they saw."""

    def __init__(self, feeds: Feeds) -> None:
        self.seen = StackFigures()
        self._feeds, self._text = feeds, feeds.line
        self._own_threads: Counter[WorkerTask] = Counter()  # of the program's threads, which may feed its training

    def add_training(self, stack: Stack, pid: int) -> None:
        """Add a thread of the training process: its main thread trains, others may work for a loader."""
        if stack.thread != pid and stack.thread_name != "MainThread":
            self._add_thread(stack)
            return
        self._stand(pid, stack.calls)
        seen = frames.frame_of(stack.calls, self._feeds)
        self.seen.main[seen.frame] += stack.looks
        loader = seen.frame in (Frame.LOADER_WAIT, Frame.LOADER_INLINE)
        if seen.wait is not None and (loader or seen.frame in (Frame.WAITING, Frame.SYNC)):
            self.seen.waits[replace(seen.wait, loader=loader)] += stack.looks
        if seen.inline:
            self.seen.workers[worker_tasks.task_of(seen.inline, self._text)] += stack.looks
        self.seen.trains |= seen.trains
        self.seen.compiled |= frames.compiled(stack.calls)

    def _add_thread(self, stack: Stack) -> None:
        task = worker_tasks.thread_task(stack.calls, self._text)
        if task is not None:
            self.seen.workers[task] += stack.looks
        elif any(call.user for call in stack.calls) and (wait := wait_of(stack.calls, self._text)) is not None:
            if wait.source in _READING:
                self._own_threads[WorkerTask.READ] += stack.looks
            elif wait.source is WaitSource.NONE:
                self._own_threads[worker_tasks.task_of(stack.calls, self._text)] += stack.looks

    def add_worker(self, pid: int, stacks: Iterable[Stack]) -> None:
        """Add a worker process.

        Looks at its thread that writes to the pipe replace as many looks in which its main thread had nothing to do.
        """
        tasks: Counter[WorkerTask] = Counter()
        feeding = 0
        for stack in stacks:
            if stack.thread == pid or stack.thread_name == "MainThread":
                self._stand(pid, worker_tasks.own_calls(stack.calls))
                tasks[worker_tasks.task_of(stack.calls, self._text)] += stack.looks
            elif worker_tasks.feeds(stack.calls):
                feeding += stack.looks
        sent = min(feeding, tasks[WorkerTask.STARVED])
        tasks[WorkerTask.STARVED] -= sent
        tasks[WorkerTask.SEND] += sent
        self.seen.workers.update(tasks)

    def _stand(self, pid: int, calls: Sequence[Call]) -> None:
        if (wait := wait_of(calls, self._text)) is not None:
            self.seen.stands[pid] = wait

    def figures(self) -> StackFigures:
        """With the program's own threads, if they feed its training."""
        if any(site.loader and site.source in _FED_BY_THREADS for site in self.seen.waits):
            self.seen.workers.update(self._own_threads)
        return self.seen


class _Recording:
    """One py-spy at work on one process. Raises OSError when it cannot be started."""

    def __init__(self, program: str, pid: int) -> None:
        self.pid = pid
        self._late_at = time.monotonic() + _TIMEOUT_S
        self._text, self._errors = os.memfd_create("stacks"), os.memfd_create("errors")
        command = [program, "record", "--nonblocking", "--idle", "--threads", "--full-filenames", "--format", "raw"]
        command += ["--rate", str(round(_LOOKS / _SECONDS)), "--duration", str(_SECONDS)]
        try:
            self._process = subprocess.Popen(
                [*command, "--output", f"/dev/fd/{self._text}", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(self._text,),
                start_new_session=True,  # a Ctrl-C at the terminal is for us
                env=os.environ | {"RUST_BACKTRACE": "0", "NO_COLOR": "1"},
            )
        except OSError:
            self._close()
            raise

    def ended(self) -> bool:
        """Whether it is done; it is killed where that takes too long."""
        if time.monotonic() > self._late_at:
            self._process.kill()
        return self._process.poll() is not None

    def stop(self) -> None:
        """End it, and drop what it saw."""
        self._process.kill()
        self._process.wait()
        self._close()

    def result(self) -> tuple[str, str]:
        """Output and error output of one that has ended."""
        text, errors = (os.pread(file, _LARGEST, 0).decode("utf-8", "replace") for file in (self._text, self._errors))
        self._close()
        if self._process.returncode == -signal.SIGKILL:
            return "", f"it took more than {_TIMEOUT_S:g} s"
        return text, errors

    def _close(self) -> None:
        os.close(self._text)
        os.close(self._errors)


def _spent_s() -> float:
    """Processor time of the children that have ended, and of this thread."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime + time.thread_time()


def missing_right(*, of_worker: bool = False) -> str:
    """Why this process may not read another's memory, and what would allow it."""
    scope = ptrace_scope()
    if scope == "1" and of_worker:
        return f"{_YAMA} is 1, where what a program allows is for itself alone: set it to 0 (sudo sysctl)"
    return _MISSING_RIGHT.get(
        scope,
        "the right to read its memory is missing: run this as the same user; a container needs --cap-add SYS_PTRACE",
    )


def _forbidden(error: str) -> bool:
    """Whether py-spy was refused."""
    return any(words in error.lower() for words in ("permission denied", "operation not permitted", "eperm"))


def pyspy() -> str | None:
    """py-spy's program: beside this Python, else on the PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")
