"""Run `iofast monitor`: watch, show, and return the exit status."""

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TextIO

from iofast.monitor.find import MonitorError
from iofast.monitor.live import WINDOW, Jobs, Sources
from iofast.monitor.render.layout import whole
from iofast.monitor.render.moment import MomentView
from iofast.monitor.render.printed import JsonLines, PageReport, PlainLines
from iofast.monitor.render.screen import Screen
from iofast.monitor.request import Request

FAILED_ON = 4  # exit status: the verdict is one of --fail-on
NOBODY = "no training process of yours found"
_ONCE_S = 60.0  # 30 s of training, enough if steps cannot be counted, and a start-up: on a busy machine 16 s
_ONCE_LEAST_S = 5.0  # steps are counted sooner, but one second may be unusual
_WAIT_S = 0.2  # for news, between looks at the clock, the keyboard and the started program; waking up costs 100 us


class Follow:
    """One run of the command. `running` tells whether the started program runs; without it, the last job ends the run.

    Output goes to stdout, beside a started program to stderr, because stdout belongs to the program.
    """

    def __init__(self, request: Request, sources: Sources, running: Callable[[], bool] | None = None) -> None:
        self._request, self._running = request, running
        longest = request.seconds or _ONCE_S
        window = max(WINDOW, int(longest / request.interval)) if request.once else WINDOW
        self._jobs = Jobs(sources, window)
        self._out: TextIO = sys.stdout if running is None else sys.stderr
        self._screen: Screen | None = None
        self._views: list[MomentView] = []
        self._started = time.monotonic()

    def run(self) -> int:
        """Watch to the end and return the exit status. Raises KeyboardInterrupt only if `once` has no verdict yet."""
        with ExitStack() as stack:
            for view in self._opened():
                self._views.append(view)
                stack.callback(self._close, view)
            stack.callback(self._jobs.close)
            stack.callback(self._jobs.settle)
            stack.enter_context(_stopped_and_ended(self) if self._running is None else ExitStack())
            self._jobs.search()
            try:
                while not self._over():
                    self._step()
            except KeyboardInterrupt:
                if self._request.once:
                    raise
        if self._request.once:
            self._print_verdicts()
        return self._status()

    def _close(self, view: MomentView) -> None:
        view.close(self._jobs.moments())

    def aside(self) -> AbstractContextManager[None]:
        """Hide the screen while the monitor is stopped."""
        return nullcontext() if self._screen is None else self._screen.aside()

    def _step(self) -> None:
        moment = self._jobs.next(_WAIT_S)
        for view in self._views:
            if moment is not None:
                view.update(moment)
            elif not len(self._jobs) and self._jobs.searches:
                view.waiting(f"{NOBODY}; waiting" if self._running is None else "waiting for the program to train")

    def _over(self) -> bool:
        elapsed = time.monotonic() - self._started
        request, nobody = self._request, self._jobs.searches and not len(self._jobs)
        if self._screen is not None and self._screen.quits():
            return True
        if self._running is not None and not self._running():
            self._take_the_rest()
            return True
        if self._running is None and nobody and (request.pids or request.once):
            return True
        if request.once:
            longest = request.seconds or (_ONCE_S if self._running is None else math.inf)  # a program may start slowly
            sure = [moment.verdict.bound.sure for moment in self._jobs.moments() if not moment.ended]
            judged = len(sure) == len(self._jobs) > 0 and all(sure)
            return elapsed >= longest or (elapsed >= _ONCE_LEAST_S and judged)
        return request.seconds is not None and elapsed >= request.seconds

    def _take_the_rest(self) -> None:
        """Show the last snapshots of the ended program, which may still be in the queue."""
        end = time.monotonic() + min(2.0, 2 * self._request.interval)
        while len(self._jobs) and time.monotonic() < end:
            self._step()
        for view in self._views if not self._jobs.moments() else ():
            view.waiting("the program ended before anything could be said of it")

    def _print_verdicts(self) -> None:
        for moment in self._jobs.moments() if not self._request.quiet else ():
            if self._request.json:
                JsonLines(self._out).update(moment)
            else:
                self._out.writelines(f"{line.plain.rstrip()}\n" for line in whole(moment))
        self._out.flush()

    def _status(self) -> int:
        failing, moments = self._request.failing(), self._jobs.moments()
        if self._request.once and not moments and self._running is None:
            raise MonitorError(f"{NOBODY}: expected a process on a GPU, a loader that reports, or PyTorch's threads")
        once = self._request.once
        found = {moment.verdict.bound if once else moment.history.prevailing() for moment in moments}
        return FAILED_ON if found & failing else 0

    def _opened(self) -> Iterator[MomentView]:
        request = self._request
        if request.prometheus is not None:
            from iofast.monitor.render.prometheus import Endpoint, address

            yield Endpoint(*address(request.prometheus), self._jobs.moments)
        if request.report is not None:
            yield PageReport(request.report)
        if request.once or request.quiet:
            return
        if request.json:
            yield JsonLines(self._out)
        elif self._out.isatty() and (self._running is None or request.screen):
            self._screen = Screen(self._out, self._jobs.moments, keys=self._running is None)
            yield self._screen  # last: errors of opening must come before the screen
        else:
            yield PlainLines(self._out)


@contextmanager
def _stopped_and_ended(follow: Follow) -> Iterator[None]:
    """Handle signals: Ctrl-Z hides the screen; after TERM and HUP the terminal is restored and the report written."""

    def ended(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    def stopped(_number: int, _: object) -> None:
        with follow.aside():
            signal.raise_signal(signal.SIGSTOP)

    handlers = {signal.SIGTERM: ended, signal.SIGHUP: ended, signal.SIGTSTP: stopped}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
