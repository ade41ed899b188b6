"""Where a stack of the training thread gets its batch: by the source of its functions, or by what other stacks show."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from iofast.monitor.probe.calls import Call
from iofast.monitor.probe.loops import Loop
from iofast.monitor.probe.source_text import SourceText
from iofast.monitor.probe.waits import Wait
from iofast.monitor.snapshot import WaitSource

_ITERATES = re.compile(r"\s*(async\s+)?for\b|.*\b(next|anext)\(")
_NEXT = frozenset({"__next__", "__anext__"})
_TORN = 0.1  # of a line's looks: py-spy does not stop a thread, so some looks mix the calls of two moments
_PYTORCH = ("std/", "torch/")


class Feeds:
    """Which functions train and where they get their batches, by their source and by stacks."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self._training: set[tuple[str, str]] = set()  # path and name of functions below which training was seen
        self._looks: Counter[tuple[str, int]] = Counter()  # by path and line, and
        self._training_looks: Counter[tuple[str, int]] = Counter()  # those of them below which training was seen

    def learn(self, calls: Sequence[Call], looks: int, *, trains: bool) -> None:
        """Learn from a stack. `trains`: it is within a backward pass or an optimizer's step."""
        for call in calls:
            if call.where.startswith(_PYTORCH):
                continue
            self._looks[call.path, call.line] += looks
            if trains:
                self._training.add((call.path, call.name))
                self._training_looks[call.path, call.line] += looks

    def trains(self, calls: Sequence[Call], wait: Wait) -> bool:
        """Whether one of these functions is in a training loop, or runs an asyncio loop for one."""
        return bool(self._asyncio_loops(wait)) or any(
            (call.path, call.name) in self._training
            or (call.user and self.source.loops(call).trains_at(call.name, call.line))
            for call in calls
        )

    def entry(self, calls: Sequence[Call], wait: Wait | None) -> int | None:
        """The place of the outermost function that is at a line where it gets its batch; None where there is none."""
        return next((place for place in range(len(calls) - 1, -1, -1) if self._gets(calls, place, wait)), None)

    def _gets(self, calls: Sequence[Call], place: int, wait: Wait | None) -> bool:
        call, callee = calls[place], calls[place - 1].name if place else ""
        if call.user and self.source.loops(call).head_at(call.name, call.line):
            return True
        if call.user and self.source.loops(call).gets_at(call.name, call.line, callee):
            return (wait is not None and wait.source is not WaitSource.NONE) or self._iterates(call, callee)
        if callee == "" or (call.path, call.name) not in self._training or not self._iterates(call, callee):
            return False
        return self._training_looks[call.path, call.line] <= _TORN * self._looks[call.path, call.line]

    def _iterates(self, call: Call, callee: str) -> bool:
        return callee in _NEXT or _ITERATES.match(self.source.line(call)) is not None

    def awaits(self, wait: Wait) -> Call | None:
        """The line at which an asyncio training waits for its batch while all its tasks sleep.

        No stack shows it, as a sleeping task is on none. None where the training may wait for something else as well.
        """
        loops, at = self._asyncio_loops(wait), wait.at
        if not loops or not loops[0].fed:
            return None
        return Call(loops[0].function, "", at.path, loops[0].awaits[0], at.where, at.user)

    def _asyncio_loops(self, wait: Wait) -> list[Loop]:
        runs = wait.source is WaitSource.EVENTS and wait.at.user
        return self.source.loops(wait.at).run_at(wait.at.line) if runs else []
