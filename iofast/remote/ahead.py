"""Fetch objects before they are needed, in the order in which they will be."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import NamedTuple

from iofast.remote import requests
from iofast.remote.store import Store
from iofast.remote.urls import RemotePath

_REQUESTS = 64  # in flight at once


class Wanted(NamedTuple):
    """An object to fetch: its URL, and its size in bytes and version as listed; the version "" is any."""

    url: str
    size: int
    etag: str


class Ahead:
    """`wanted` objects, fetched in order while `most` bytes of them are enough, and at least one at a time."""

    def __init__(self, wanted: Sequence[Wanted], most: int) -> None:
        self._wanted, self._most = wanted, most
        self._futures: list[concurrent.futures.Future[bytes] | None] = []
        self._taken = self._held = 0  # objects, bytes
        self._fill()

    def take(self, number: int, waiting: Callable[[], object] | None = None) -> bytes:
        """The bytes of object `number`; earlier ones are dropped. Raises as `Store.get` does.

        `waiting` is called now and then during a wait.
        """
        self._drop(number)
        self._fill()
        future = self._futures[number]
        assert future is not None, "each object can be taken once"
        data = requests.finish(future, waiting)
        self._drop(number + 1)
        self._fill()
        return data

    def close(self) -> None:
        """Cancel what is not fetched yet."""
        self._drop(len(self._wanted))

    def _drop(self, stop: int) -> None:
        while self._taken < min(stop, len(self._futures)):
            future, self._futures[self._taken] = self._futures[self._taken], None
            if future is not None:
                future.cancel()
                self._held -= self._wanted[self._taken].size
            self._taken += 1
        while len(self._futures) < stop:  # never begun
            self._futures.append(None)
            self._taken += 1

    def _fill(self) -> None:
        while len(self._futures) < len(self._wanted):
            size = self._wanted[len(self._futures)].size
            if self._held and (self._held + size > self._most or len(self._futures) - self._taken >= _REQUESTS):
                return
            self._futures.append(requests.start(fetch(self._wanted[len(self._futures)])))
            self._held += size


async def fetch(wanted: Wanted) -> bytes:
    """The bytes of one object, in the loop of `requests`."""
    place = RemotePath.of(wanted.url)
    store = Store(RemotePath(place.store, ""))
    return await store.fetch(place.key, wanted.etag, wanted.size if wanted.etag else None)
