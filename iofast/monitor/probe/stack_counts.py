"""Looks at the Python stacks of a training and its workers, counted by what they saw."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from iofast.monitor.probe import frames, worker_tasks
from iofast.monitor.probe.calls import Call, Stack, wait_of
from iofast.monitor.probe.feeds import Feeds
from iofast.monitor.snapshot import Frame, StackFigures, SyncSite, WaitSite, WaitSource, WorkerTask

_MOST_SITES = 20
_FED_BY_THREADS = (WaitSource.THREADS, WaitSource.EVENTS)
_READING = (WaitSource.FILE, WaitSource.SOCKET, WaitSource.TIMER)


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
            self._waits[replace(seen.wait, loader=loader)] += stack.looks
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
            self._stands[pid] = wait

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
