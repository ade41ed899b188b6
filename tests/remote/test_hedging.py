"""Small requests whose answer is late are sent twice; the first good answer counts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest
from object_store import Bucket, Fault, FaultProxy, Request

from iofast.errors import StorageError
from iofast.meter.traffic import traffic
from iofast.remote import hedging
from iofast.remote.hedging import SMALL, Hedge
from iofast.remote.limits import RequestLimits
from iofast.remote.store import Store

DATA = os.urandom(SMALL + 10)


class Attempts:
    """Attempts with given times and results, in the order in which they are begun."""

    def __init__(self, *each: tuple[float, object]) -> None:
        self.each, self.begun, self.ended = list(each), 0, 0

    async def __call__(self) -> object:
        seconds, result = self.each[self.begun]
        self.begun += 1
        await asyncio.sleep(seconds)
        self.ended += 1
        if isinstance(result, Exception):
            raise result
        return result


def warmed(answers: int = hedging._KNOWN) -> Hedge:
    """A hedge that knows answers of no time."""
    hedge = Hedge()
    for _ in range(answers):
        asyncio.run(hedge.get(Attempts((0, None))))
    return hedge


def test_nothing_is_sent_twice_before_enough_is_known() -> None:
    attempts = Attempts((0.2, "late"), (0, "never"))
    assert asyncio.run(warmed(hedging._KNOWN - 2).get(attempts)) == "late"
    assert attempts.begun == 1


def test_the_second_answer_counts_if_it_is_first() -> None:
    before, attempts = traffic.hedges, Attempts((60, "late"), (0.01, "quick"))
    assert asyncio.run(warmed().get(attempts)) == "quick"
    assert (attempts.begun, attempts.ended, traffic.hedges - before) == (2, 1, 1)


def test_the_first_answer_counts_if_it_is_first() -> None:
    attempts = Attempts((0.2, "late"), (60, "later"))
    assert asyncio.run(warmed().get(attempts)) == "late"
    assert attempts.begun == 2


@pytest.mark.parametrize("first", [0.1, 0.3])
def test_an_error_counts_only_if_no_answer_is_left(first: float) -> None:
    wrong = StorageError("wrong")
    assert asyncio.run(warmed().get(Attempts((first, wrong), (0.2, "good")))) == "good"
    with pytest.raises(StorageError, match="wrong"):
        asyncio.run(warmed().get(Attempts((first, wrong), (0.2, wrong))))


def test_a_quick_error_is_not_sent_twice() -> None:
    attempts = Attempts((0, StorageError("wrong")), (0, "never"))
    with pytest.raises(StorageError):
        asyncio.run(warmed().get(attempts))
    assert attempts.begun == 1


def test_a_slow_store_gets_few_requests_twice() -> None:
    hedge, twice = warmed(), 0
    for _ in range(40):
        attempts = Attempts((0.03, None), (0.03, None))
        asyncio.run(hedge.get(attempts))
        twice += attempts.begun - 1
    assert 1 <= twice <= 0.05 * 140 + 1


def test_a_cancelled_wait_leaves_no_request() -> None:
    async def cancelled() -> int:
        attempts = Attempts((60, None), (60, None))
        task = asyncio.ensure_future(hedge.get(attempts))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait({task})
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    hedge = warmed()
    assert asyncio.run(cancelled()) == 1


@pytest.mark.parametrize(("size", "gets"), [(SMALL, 2), (SMALL + 1, 1)])
def test_of_a_real_store(
    bucket: Bucket, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, size: int, gets: int
) -> None:
    """The first answer stalls; a small request does not wait for it."""
    store = Store.of(f"s3://{bucket.name}", RequestLimits(read=20))
    etag = store.put_bytes("x", DATA)
    monkeypatch.setattr(hedging, "_KNOWN", 8)
    monkeypatch.setattr(hedging, "_MOST", 1.0)
    hedging.hedges.pop(store.place.store, None)
    for _ in range(30):
        assert store.get_range("x", 5, 50, etag) == DATA[5:50]
    asked = f"bytes=0-{size - 1}"  # a late second request of the answers before does not count
    proxy.plan = first_is_slow(asked)
    assert store.get_range("x", 0, size, etag) == DATA[:size]
    assert sum(each.headers.get("range") == asked for each in proxy.requests) == gets


def first_is_slow(asked: str) -> Callable[[Request], Fault | None]:
    """A plan whose first request of a range waits."""
    left = [Fault(delay=2)]
    return lambda request: left.pop() if left and request.headers.get("range") == asked else None
