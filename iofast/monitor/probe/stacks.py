"""Python stacks of a training and its workers, by py-spy, which reads their memory and never stops nor changes them.

A burst is one py-spy for each process, all at once: `record` with a number of looks, at random distances, within three
seconds. Starting it is what costs: 20 looks take 24 ms of processor time, and one `dump` alone takes 13 ms (minimum of
fifteen, a training with a few hundred modules). Nothing is written to disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from iofast.monitor.probe import frames, worker_tasks
from iofast.monitor.probe.calls import Call, Stack, parse
from iofast.monitor.probe.feeds import Feeds
from iofast.monitor.probe.states import folder, ptrace_scope
from iofast.monitor.probe.waits import Wait, wait_of
from iofast.monitor.snapshot import Frame, Job, StackFigures, SyncSite, WaitSite, WaitSource, WorkerTask

_SECONDS = 3  # of a burst, in whole ones: the same looks within one second see the same few steps
_FASTEST = 100  # looks a second
_TIMEOUT_S = 10.0  # for a burst: py-spy looks up all symbols of a process before its first look
_LARGEST = 8 << 20  # bytes of py-spy's output
_MOST_SITES = 20
_FED_BY_THREADS = (WaitSource.THREADS, WaitSource.EVENTS)
_READING = (WaitSource.FILE, WaitSource.SOCKET, WaitSource.TIMER)
_TRIES = 3  # of bursts that fail for an unknown reason
_YAMA = "kernel.yama.ptrace_scope"
_MISSING_RIGHT = {
    "1": f"{_YAMA} is 1: start the program with `iofast monitor -- python train.py`, or allow it (sudo sysctl"
    f" {_YAMA}=0)",
    "2": f"{_YAMA} is 2: only root may look (sudo)",
    "3": f"{_YAMA} is 3, which forbids it to everybody until the next boot",
}


class StackProbe:
    """Bursts of looks at one job. `note` says in a line why there are none; after a refusal it does not try again."""

    def __init__(self, job: Job) -> None:
        self.note = ""
        self._job = job
        self._program = pyspy()
        self._feeds = Feeds(job.pid)
        self._failures = 0
        self._refused = self._workers_refused = False
        self._running: list[_Recording] = []
        if self._program is None:
            self.note = "no Python stacks: py-spy is not installed (pip install 'iofast[monitor]')"

    def burst(self, worker_pids: Collection[int], looks: int) -> StackCounts | None:
        """Look about `looks` times at the training thread and at each of these workers. This takes three seconds.

        None where the training cannot be looked at; then `note` says why. A worker that cannot be is left out.
        """
        if self._program is None or self._refused:
            return None
        others = () if self._workers_refused else worker_pids
        pids = [self._job.pid, *(pid for pid in others if pid != self._job.pid)]
        rate = max(1, min(_FASTEST, round(looks / _SECONDS)))
        self._running = [_Recording(self._program, pid, rate) for pid in pids]
        (text, error), *results = [recording.result() for recording in self._running]
        tally = StackCounts(self._feeds)
        for stack in parse(text):
            tally.add_training(stack, self._job.pid)
        if not tally.looks:
            self._failed(error)
            return None
        self._failures = 0
        for pid, (text, error) in zip(pids[1:], results, strict=True):
            tally.add_worker(pid, parse(text))
            self._workers_refused |= not text and _forbidden(error)
        self.note = f"no Python stacks of its workers: {missing_right(of_worker=True)}" if self._workers_refused else ""
        return tally

    def stop(self) -> None:
        """End the burst of another thread; it returns None."""
        for recording in self._running:
            recording.stop()

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
        self._feeds, self._text = feeds, feeds.line
        self._frames: Counter[Frame] = Counter()
        self._tasks: Counter[WorkerTask] = Counter()
        self._own_threads: Counter[WorkerTask] = Counter()  # of the program's threads, which may feed its training
        self._syncs: Counter[SyncSite] = Counter()
        self._waits: Counter[WaitSite] = Counter()
        self._stands: dict[int, WaitSite] = {}
        self._trains = self._compiled = False

    @property
    def looks(self) -> int:
        """Of the training thread."""
        return self._frames.total()

    def add(self, other: StackCounts) -> None:
        """Add the looks of another burst."""
        for name in ("_frames", "_tasks", "_own_threads", "_syncs", "_waits"):
            getattr(self, name).update(getattr(other, name))
        self._stands |= other._stands
        self._trains |= other._trains
        self._compiled |= other._compiled

    def add_training(self, stack: Stack, pid: int) -> None:
        """Add a thread of the training process: its main thread trains, others may work for a loader."""
        if stack.thread != pid and stack.thread_name != "MainThread":
            self._add_thread(stack)
            return
        self._stand(pid, stack.calls)
        seen = frames.frame_of(stack.calls, self._feeds)
        self._frames[seen.frame] += stack.looks
        if seen.sync is not None:
            self._syncs[seen.sync] += stack.looks
        loader = seen.frame in (Frame.LOADER_WAIT, Frame.LOADER_INLINE)
        if seen.wait is not None and (loader or seen.frame is Frame.WAITING):
            self._waits[_site(seen.wait, loader=loader)] += stack.looks
        if seen.inline:
            self._tasks[worker_tasks.task_of(seen.inline, self._text)] += stack.looks
        self._trains |= seen.trains
        self._compiled |= frames.compiled(stack.calls)

    def _add_thread(self, stack: Stack) -> None:
        task = worker_tasks.thread_task(stack.calls, self._text)
        if task is not None:
            self._tasks[task] += stack.looks
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
            if worker_tasks.attends(stack.calls):
                return
            if stack.thread == pid or stack.thread_name == "MainThread":
                self._stand(pid, worker_tasks.own_calls(stack.calls))
                tasks[worker_tasks.task_of(stack.calls, self._text)] += stack.looks
            elif worker_tasks.feeds(stack.calls):
                feeding += stack.looks
        sent = min(feeding, tasks[WorkerTask.STARVED])
        tasks[WorkerTask.STARVED] -= sent
        tasks[WorkerTask.SEND] += sent
        self._tasks.update(tasks)

    def _stand(self, pid: int, calls: Sequence[Call]) -> None:
        if (wait := wait_of(calls, self._text)) is not None:
            self._stands[pid] = _site(wait, loader=False)

    def figures(self) -> StackFigures:
        """Shares of the looks."""
        if any(site.loader and site.source in _FED_BY_THREADS for site in self._waits):
            self._tasks.update(self._own_threads)
        looks, worker_looks = self.looks, self._tasks.total()
        syncs, waits = self._syncs.most_common(_MOST_SITES), self._waits.most_common(_MOST_SITES)
        return StackFigures(
            looks=looks,
            main={frame: count / looks for frame, count in self._frames.items()},
            worker_looks=worker_looks,
            workers={task: count / worker_looks for task, count in self._tasks.items() if count},
            syncs=tuple(replace(site, share=count / looks) for site, count in syncs),
            waits=tuple(replace(site, share=count / looks) for site, count in waits),
            stands=dict(self._stands),
            trains=self._trains,
            compiled=self._compiled,
        )


def _site(wait: Wait, *, loader: bool) -> WaitSite:
    """Where a thread waits; the share is not known yet."""
    return WaitSite(wait.at.path, wait.at.line, wait.at.name, wait.call, wait.source, loader, 0.0)


class _Recording:
    """One py-spy at work on one process. Raises OSError when it cannot be started."""

    def __init__(self, program: str, pid: int, rate: int) -> None:
        self._file = os.memfd_create("stacks")
        command = [program, "record", "--nonblocking", "--idle", "--threads", "--full-filenames", "--format", "raw"]
        command += ["--rate", str(rate), "--duration", str(_SECONDS), "--output", f"/dev/fd/{self._file}"]
        try:
            self._process = subprocess.Popen(
                [*command, "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(self._file,),
                start_new_session=True,  # a Ctrl-C at the terminal is for us
                env=os.environ | {"RUST_BACKTRACE": "0", "NO_COLOR": "1"},
            )
        except OSError:
            os.close(self._file)
            raise

    def stop(self) -> None:
        """Called by another thread than that of `result`."""
        self._process.kill()

    def result(self) -> tuple[str, str]:
        """Its output and its error output."""
        try:
            errors = self._process.communicate(timeout=_TIMEOUT_S)[1]
            text = os.pread(self._file, _LARGEST, 0)
            return text.decode("utf-8", "replace"), errors.decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return "", f"it took more than {_TIMEOUT_S:g} s"
        finally:
            os.close(self._file)


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
