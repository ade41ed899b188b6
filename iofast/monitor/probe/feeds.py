"""Where a stack of the training thread gets its batch: by the source of its functions, or by what other stacks show."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from iofast.monitor.probe.calls import Call, Text
from iofast.monitor.probe.loops import Loop, Loops
from iofast.monitor.probe.waits import Wait
from iofast.monitor.snapshot import WaitSource

_ITERATES = re.compile(r"\s*(async\s+)?for\b|.*\b(next|anext)\(")
_NEXT = frozenset({"__next__", "__anext__"})
_STEP = 0.1  # of a line's looks: py-spy, which does not stop a thread, sees some calls below the line after theirs
_PYTORCH = ("std/", "torch/")


class Feeds:
    """Knows which functions train, by their source and by the stacks that were learned from."""

    def __init__(self, text: Text, loops: Callable[[Call], Loops]) -> None:
        self._text, self._loops = text, loops
        self._training: set[tuple[str, str]] = set()  # path and name of functions below which training was seen
        self._seen: Counter[tuple[str, int]] = Counter()  # looks by path and line, and
        self._steps: Counter[tuple[str, int]] = Counter()  # those of them below which training was seen

    def learn(self, calls: Sequence[Call], looks: int, *, trains: bool) -> None:
        """From a stack. `trains`: it is within a backward pass or an optimizer's step."""
        for call in calls:
            if call.where.startswith(_PYTORCH):
                continue
            self._seen[call.path, call.line] += looks
            if trains:
                self._training.add((call.path, call.name))
                self._steps[call.path, call.line] += looks

    def trains(self, calls: Sequence[Call], wait: Wait) -> bool:
        """Whether one of these functions is in a training loop, or runs an asyncio loop for one."""
        return bool(self._run(wait)) or any(
            (call.path, call.name) in self._training
            or (call.user and self._loops(call).trains_at(call.name, call.line))
            for call in calls
        )

    def entry(self, calls: Sequence[Call], wait: Wait | None) -> int | None:
        """The place of the outermost function that is at a line where it gets its batch; None where there is none."""
        return next((place for place in range(len(calls) - 1, -1, -1) if self._gets(calls, place, wait)), None)

    def _gets(self, calls: Sequence[Call], place: int, wait: Wait | None) -> bool:
        call, callee = calls[place], calls[place - 1].name if place else ""
        if call.user and self._loops(call).head_at(call.name, call.line):
            return True
        if call.user and self._loops(call).gets_at(call.name, call.line, callee):
            return (wait is not None and wait.source is not WaitSource.NONE) or self._iterates(call, callee)
        if callee == "" or (call.path, call.name) not in self._training or not self._iterates(call, callee):
            return False
        return self._steps[call.path, call.line] <= _STEP * self._seen[call.path, call.line]

    def _iterates(self, call: Call, callee: str) -> bool:
        return callee in _NEXT or _ITERATES.match(self._text(call)) is not None

    def awaits(self, wait: Wait) -> Call | None:
        """The line at which an asyncio training waits for its batch while all its tasks sleep; None where it may wait
        for something else as well. No stack has it: a task that sleeps is on none."""
        loops, at = self._run(wait), wait.at
        if not loops or not loops[0].fed:
            return None
        return Call(loops[0].function, "", at.path, loops[0].awaits[0], at.where, at.user)

    def _run(self, wait: Wait) -> list[Loop]:
        return self._loops(wait.at).run_at(wait.at.line) if wait.source is WaitSource.EVENTS and wait.at.user else []
