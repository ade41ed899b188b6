"""Send a small request again if its answer is late, and take the answer that comes first.

One slow answer of 64 records delays the whole batch. A second request costs little and is seldom slow, too: "hedged
requests" of J. Dean and L. A. Barroso, The Tail at Scale, 2013.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from iofast.meter.traffic import AnswerTimes, traffic

_T = TypeVar("_T")

SMALL = 1 << 20  # bytes: sending more twice would cost a link that is the limit
_KNOWN = 100  # answers before a 99th percentile means anything
_LEAST = 0.01  # seconds: a second request before would win nothing
_MOST = 0.05  # share of requests that are sent twice: a store that is slow as a whole must not get twice the load


class Hedge:
    """The times of a store's small answers, and when to send a request again."""

    def __init__(self) -> None:
        self._times = AnswerTimes()
        self._asked = self._hedged = 0

    async def get(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """The result of the first of one or two attempts that succeeds. Raises as the last of them does."""
        begun = time.monotonic()
        self._asked += 1
        tasks = {asyncio.ensure_future(attempt())}
        try:
            done, _ = await asyncio.wait(tasks, timeout=self._patience())
            if not done and self._hedged < _MOST * self._asked:
                self._hedged += 1
                traffic.hedges += 1
                tasks.add(asyncio.ensure_future(attempt()))
            result = await _first(set(tasks))
        finally:
            for task in tasks:
                task.cancel()
        self._times.add(time.monotonic() - begun)
        return result

    def _patience(self) -> float | None:
        """Seconds until a second request; None if too little is known."""
        late = self._times.quantile(0.99)
        return None if late is None or len(self._times) < _KNOWN else max(_LEAST, late)


async def _first(tasks: set[asyncio.Future[_T]]) -> _T:
    """The first result; an error only if no other attempt is left."""
    while True:
        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        good = next((each for each in done if not each.cancelled() and each.exception() is None), None)
        if good is not None or not tasks:
            return (good or done.pop()).result()


hedges: defaultdict[str, Hedge] = defaultdict(Hedge)  # by a store's URL; for the loop of `requests`
