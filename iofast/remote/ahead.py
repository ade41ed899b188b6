"""Fetch objects before they are needed, in the order in which they will be."""

import concurrent.futures
from collections.abc import Callable, Iterable
from typing import NamedTuple

from iofast.remote import requests
from iofast.remote.store import Store

_REQUESTS = 64  # in flight at once


class ListedObject(NamedTuple):
    """An object to fetch: its URL, and its size in bytes and version as listed; the version "" is any."""

    url: str
    size: int
    etag: str


class Ahead:
    """Objects in the order in which they will be needed: fetched while `most` bytes are enough, at least one at a time.

    For one thread.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[int, ListedObject] = {}  # by number, in order
        self._begun: dict[int, tuple[int, concurrent.futures.Future[bytes]]] = {}  # size and result by number
        self._next = self._held = 0

    def add(self, wanted: Iterable[ListedObject]) -> range:
        """Queue objects, and return their numbers."""
        start = self._next
        for each in wanted:
            self._waiting[self._next] = each
            self._next += 1
        self._fill()
        return range(start, self._next)

    def take(self, number: int, waiting: Callable[[], object] | None = None) -> bytes:
        """The bytes of an object that was not taken yet; earlier ones are dropped. Raises as `Store.get` does.

        `waiting` is called now and then during a wait.
        """
        self._drop(number)
        self._fill()
        data = requests.finish(self._begun[number][1], waiting)
        self._drop(number + 1)
        self._fill()
        return data

    def close(self) -> None:
        """Drop everything."""
        self._drop(self._next)

    def _drop(self, stop: int) -> None:
        for number in [each for each in self._begun if each < stop]:
            size, future = self._begun.pop(number)
            future.cancel()
            self._held -= size
        for number in [each for each in self._waiting if each < stop]:
            del self._waiting[number]

    def _fill(self) -> None:
        while self._waiting:
            number, wanted = next(iter(self._waiting.items()))
            if self._begun and (self._held + wanted.size > self._most or len(self._begun) >= _REQUESTS):
                return
            del self._waiting[number]
            self._begun[number] = wanted.size, requests.start(fetch(wanted))
            self._held += wanted.size


async def fetch(wanted: ListedObject) -> bytes:
    """The bytes of one object, in the loop of `requests`."""
    return await Store.of(wanted.url).fetch("", wanted.etag, wanted.size if wanted.etag else None)
