"""Python stacks of a training and its workers, by py-spy, which reads their memory and never stops nor changes them.

A burst is one py-spy for each process, all at once: `record` with as many looks as asked for, at random distances,
within three seconds. Its start is what costs: 20 looks take 24 ms of processor time, and one `dump` alone takes 13 ms
(minimum of fifteen, a training with a few hundred modules). Nothing is written to disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from iofast.monitor.probe import frames, worker_tasks
from iofast.monitor.probe.calls import Stack, parse
from iofast.monitor.probe.feeds import Feeds
from iofast.monitor.probe.frames import Seen, Sync
from iofast.monitor.probe.source_text import SourceText
from iofast.monitor.probe.waits import wait_of
from iofast.monitor.snapshot import Frame, Job, StackFigures, SyncSite, WaitSite, WaitSource, WorkerTask

_SECONDS = 3  # of a burst, in whole ones: the same looks within one second see the same few steps
_FASTEST = 100  # looks a second
_TIMEOUT_S = 10.0  # for a burst: py-spy looks up all symbols of a process before its first look
_LARGEST = 8 << 20  # of what py-spy writes
_MOST_SITES = 20
_FED_BY_THREADS = (WaitSource.THREADS, WaitSource.EVENTS)
_TRIES = 3  # of bursts that fail for no reason that is known
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


class StackProbe:
    """Bursts of looks at one job. `note` says in a line why there are none; after a refusal it does not try again."""

    def __init__(self, job: Job) -> None:
        self.note = ""
        self._job = job
        self._program = _find()
        self._text = SourceText(job.pid)
        self._feeds = Feeds(self._text, self._text.loops)
        self._failures = 0
        self._refused = self._workers_refused = False
        self._running: list[_Recording] = []
        if self._program is None:
            self.note = "no Python stacks: py-spy is not installed (pip install 'iofast[monitor]')"

    def burst(self, worker_pids: Collection[int], looks: int) -> StackFigures | None:
        """About `looks` looks at the training thread and at each of these workers, in three seconds, which it takes.

        None where the training cannot be looked at: `note` says why. A worker that cannot be is left out. For a thread:
        waiting for py-spy holds nothing up.
        """
        if self._program is None or self._refused:
            return None
        others = () if self._workers_refused else worker_pids
        pids = [self._job.pid, *(pid for pid in others if pid != self._job.pid)]
        rate = max(1, min(_FASTEST, round(looks / _SECONDS)))
        self._running = [_Recording(self._program, pid, rate) for pid in pids]
        results = [recording.result() for recording in self._running]
        stacks = list(parse(results[0][0]))
        tally = _Tally(self._text, self._feeds)
        for stack in stacks:
            tally.add_training(stack, self._job.pid)
        if not tally.looks:
            self._failed(results[0][1])
            return None
        self._failures = 0
        for pid, (text, error) in zip(pids[1:], results[1:], strict=True):
            tally.add_worker(pid, list(parse(text)))
            self._workers_refused |= not text and _forbidden(error)
        self.note = f"no Python stacks of its workers: {missing_right(of_worker=True)}" if self._workers_refused else ""
        return tally.figures()

    def stop(self) -> None:
        """End a burst that another thread waits for; it finds nothing."""
        for recording in self._running:
            recording.stop()

    def _failed(self, error: str) -> None:
        self._failures += 1
        pid = self._job.pid
        lowered = error.lower()
        if not os.path.exists(f"/proc/{pid}") or "check that the process is running" in lowered:  # or is a zombie
            self.note = f"no Python stacks: process {pid} has ended"
        elif _forbidden(error):
            self._refused = True
            self.note = f"no Python stacks: {missing_right()}"
        else:
            self._refused = self._failures >= _TRIES
            said = next((line for line in error.splitlines() if line.strip()), "it saw no Python thread").strip()
            self.note = f"no Python stacks of process {pid}: py-spy: {said.removeprefix('Error: ')[:200]}"


class _Tally:
    """Looks, counted by what they saw."""

    def __init__(self, text: SourceText, feeds: Feeds) -> None:
        self._text, self._feeds = text, feeds
        self._frames: Counter[Frame] = Counter()
        self._work: Counter[WorkerTask] = Counter()
        self._threads: Counter[WorkerTask] = Counter()  # of the program's own, which may feed its training
        self._syncs: Counter[Sync] = Counter()
        self._waits: Counter[WaitSite] = Counter()
        self._trains = self._single_tensor = self._anomalies = self._convolutions = self._compiled = False

    @property
    def looks(self) -> int:
        return self._frames.total()

    def add_training(self, stack: Stack, pid: int) -> None:
        """A thread of the training process: its main thread trains, others may work for a loader."""
        if stack.thread != pid and stack.thread_name != "MainThread":
            self._add_thread(stack)
            return
        seen = frames.frame_of(stack.calls, self._text, self._feeds)
        self._feeds.learn(stack.calls, stack.looks, trains=seen.frame in frames.TRAINING)
        self._frames[seen.frame] += stack.looks
        if seen.sync is not None:
            self._syncs[seen.sync] += stack.looks
        if (site := _site(seen)) is not None:
            self._waits[site] += stack.looks
        self._trains |= seen.trains
        if seen.inline:
            self._work[worker_tasks.work_of(seen.inline, self._text)] += stack.looks
        self._single_tensor |= frames.single_tensor(stack.calls)
        self._anomalies |= frames.anomalies(stack.calls)
        self._convolutions |= frames.convolutions(stack.calls)
        self._compiled |= frames.compiled(stack.calls)

    def add_worker(self, pid: int, stacks: Iterable[Stack]) -> None:
        """A worker process. Where its thread that writes to the pipe is at work, it counts in place of as many looks
        in which its main thread had nothing to do."""
        found: Counter[WorkerTask] = Counter()
        feeding = 0
        for stack in stacks:
            if worker_tasks.attends(stack.calls):
                return
            if stack.thread == pid or stack.thread_name == "MainThread":
                found[worker_tasks.work_of(stack.calls, self._text)] += stack.looks
            elif worker_tasks.feeds(stack.calls):
                feeding += stack.looks
        sent = min(feeding, found[WorkerTask.STARVED])
        found[WorkerTask.STARVED] -= sent
        found[WorkerTask.SEND] += sent
        self._work.update(found)

    def figures(self) -> StackFigures:
        if any(site.loader and site.source in _FED_BY_THREADS for site in self._waits):
            self._work.update(self._threads)
        looks, worker_looks = self.looks, self._work.total()
        return StackFigures(
            looks=looks,
            main={frame: count / looks for frame, count in self._frames.items()},
            worker_looks=worker_looks,
            workers={kind: count / worker_looks for kind, count in self._work.items() if count},
            syncs=tuple(
                SyncSite(sync.file, sync.line, sync.call, count / looks)
                for sync, count in self._syncs.most_common(_MOST_SITES)
            ),
            waits=tuple(replace(site, share=count / looks) for site, count in self._waits.most_common(_MOST_SITES)),
            trains=self._trains,
            single_tensor_optimizer=self._single_tensor,
            anomaly_detection=self._anomalies,
            convolutions=self._convolutions,
            compiled=self._compiled,
        )

    def _add_thread(self, stack: Stack) -> None:
        kind = worker_tasks.pin_work(stack.calls)
        if kind is None and worker_tasks.works(stack.calls) and not worker_tasks.parked(stack.calls):
            kind = worker_tasks.work_of(stack.calls, self._text)
        if kind is not None:
            self._work[kind] += stack.looks
        elif any(call.user for call in stack.calls) and (wait := wait_of(stack.calls, self._text)) is not None:
            if wait.source in (WaitSource.FILE, WaitSource.SOCKET, WaitSource.TIMER):
                self._threads[WorkerTask.READ] += stack.looks
            elif wait.source is WaitSource.NONE:
                self._threads[worker_tasks.work_of(stack.calls, self._text)] += stack.looks


def _site(seen: Seen) -> WaitSite | None:
    """Without its share."""
    loader = seen.frame in (Frame.LOADER_WAIT, Frame.LOADER_INLINE)
    if seen.wait is None or not (loader or seen.frame is Frame.WAITING):
        return None
    wait = seen.wait
    return WaitSite(wait.at.path, wait.at.line, wait.at.name, wait.call, wait.source, loader, 0.0)


class _Recording:
    """One py-spy at work on one process."""

    def __init__(self, program: str, pid: int, rate: int) -> None:
        self._file = os.memfd_create("stacks")
        command = [program, "record", "--nonblocking", "--idle", "--threads", "--full-filenames", "--format", "raw"]
        command += ["--rate", str(rate), "--duration", str(_SECONDS), "--output", f"/dev/fd/{self._file}"]
        try:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [*command, "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(self._file,),
                start_new_session=True,  # a Ctrl-C at the terminal is for us
                env=os.environ | {"RUST_BACKTRACE": "0", "NO_COLOR": "1"},
            )
            self._error = ""
        except OSError as error:
            self._process, self._error = None, str(error)

    def stop(self) -> None:
        """For another thread than that of `result`."""
        if self._process is not None:
            self._process.kill()

    def result(self) -> tuple[str, str]:
        """What it wrote, and what it said of errors."""
        try:
            if self._process is None:
                return "", self._error
            try:
                said = self._process.communicate(timeout=_TIMEOUT_S)[1]
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
                return "", f"it took more than {_TIMEOUT_S:g} s"
            text = os.pread(self._file, _LARGEST, 0).decode("utf-8", "replace")
            return text, said.decode("utf-8", "replace")
        finally:
            os.close(self._file)


def missing_right(*, of_worker: bool = False) -> str:
    """Why this process may not read another's memory, and what would allow it."""
    try:
        scope = _PTRACE_SCOPE.read_text().strip()
    except OSError:
        scope = ""
    if scope == "3":
        return "kernel.yama.ptrace_scope is 3, which forbids it to everybody until the next boot"
    if scope == "2":
        return "kernel.yama.ptrace_scope is 2: only root may look (sudo)"
    if scope == "1" and of_worker:
        return (
            "kernel.yama.ptrace_scope is 1, where what a program allows is for itself alone: set it to 0 (sudo sysctl)"
        )
    if scope == "1":
        return (
            "kernel.yama.ptrace_scope is 1: start the program with `iofast monitor -- python train.py`, or allow it"
            " (sudo sysctl kernel.yama.ptrace_scope=0)"
        )
    return "the right to read its memory is missing: run this as the same user; a container needs --cap-add SYS_PTRACE"


def _forbidden(error: str) -> bool:
    """Whether py-spy was refused."""
    lowered = error.lower()
    return any(words in lowered for words in ("permission denied", "operation not permitted", "eperm"))


def _find() -> str | None:
    """py-spy's program: beside this Python, else on the PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")
