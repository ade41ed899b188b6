"""One object store, or a prefix of it: read, list, write and delete objects."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from iofast.errors import IofastError, ObjectConflictError, ObjectMissingError, OptionError, StorageError
from iofast.meter.traffic import traffic
from iofast.remote import requests
from iofast.remote.connection import ONCE, READ, WRITE, connect
from iofast.remote.failures import ShortAnswerError, cause_of, failure_of
from iofast.remote.limits import VARIABLE, RequestLimits
from iofast.remote.upload import Upload
from iofast.remote.urls import WEB, RemotePath

if TYPE_CHECKING:
    from obstore import GetOptions, ListStream, ObjectMeta, PutMode
    from obstore.store import ObjectStore

_T = TypeVar("_T")
_PAGE = 1000  # objects of a listing that arrive together; S3 lists as many per request
_UPLOADS = 4  # parts in flight; with the next ones, an upload takes about 48 MiB of memory
_CUT_OFF = ("read", "listed")  # what may end at any moment
_GRACE = 1.0  # seconds beyond the patience, in which an attempt may still say why it failed
_QUIET = 5.0  # seconds of failures before a warning


class ObjectInfo(NamedTuple):
    """An object: its key relative to the store's prefix, its size in bytes, and its version.

    The version is the ETag; of a web server without ETags, the time of change.
    """

    key: str
    size: int
    etag: str


@dataclass(frozen=True)
class Store:
    """The objects below `place`, whose keys are relative to it; the key "" is the object at `place` itself.

    Operations raise `ObjectMissingError` for an object that does not exist, `ObjectConflictError` for one that is not
    as the request requires, and `StorageError` if the store cannot be reached for `limits.patience` seconds, refuses
    access, or answers wrongly. A pickled store is its URL: connections and secrets stay in the process.
    """

    place: RemotePath
    limits: RequestLimits = field(default_factory=RequestLimits.of_environment)

    @classmethod
    def of(cls, url: str, limits: RequestLimits | None = None) -> Self:
        """The store of a URL such as `s3://bucket/prefix`. Raises `OptionError`, for credentials in the URL, too."""
        return cls(RemotePath.of(url), limits or RequestLimits.of_environment())

    def url(self, key: str = "") -> str:
        """The URL of an object."""
        return f"{self.place.store}/{self._key(key)}"

    def get(self, key: str, etag: str = "") -> bytes:
        """The bytes of an object, in the version `etag` if that is given."""
        return requests.run(self.fetch(key, etag))

    def get_range(self, key: str, start: int, stop: int, etag: str = "") -> bytes:
        """The bytes [start, stop) of an object. Raises `ObjectConflictError` if it has fewer."""
        return bytes(requests.run(self.fetch_range(key, start, stop, etag)))

    def head(self, key: str) -> ObjectInfo:
        """Size and version of an object."""
        return requests.run(self.look(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The objects below `prefix`, which ends with a whole part of a key, page by page.

        Raises `SourceError` for an object whose name is no path, such as `a//b`, and `OptionError` for a web server.
        """
        if self.place.scheme in WEB:
            raise OptionError(f"{self.url(prefix)}: a web server has no listing; name its files in a manifest")
        skipped = len(self.place.key) + 1 if self.place.key else 0
        pages = _Pages(lambda: self._connected(READ), self._key(prefix))
        while (page := requests.run(self._patiently("listed", prefix, pages.next))) is not None:
            for each in page:
                if len(each["path"]) > skipped:  # the prefix itself may be an object, which marks a folder
                    yield ObjectInfo(each["path"][skipped:], each["size"], _version(each))

    def put_bytes(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str = "") -> str:
        """Write an object whole and return its ETag.

        With `if_none_match` only if none exists, with `if_match` only in place of that version; else raises
        `ObjectConflictError`. An object that has these bytes already, because an answer was lost, counts as written.
        """
        mode: PutMode = "create" if if_none_match else {"e_tag": if_match} if if_match else "overwrite"
        return requests.run(self._put_bytes(key, data, mode))

    def put_file(self, key: str, path: str | os.PathLike[str], waiting: Callable[[], object] | None = None) -> str:
        """Write a local file as an object, in parts of at least 8 MiB, and return its ETag.

        The object appears when it is complete. Parts are removed after an error or interrupt, but not after a kill:
        let a rule of the bucket remove incomplete uploads. `waiting` is called now and then; an error of it ends the
        upload. Raises `OSError` for the file.
        """
        upload = Upload(path)
        try:
            return requests.run(self._patiently("written", key, lambda: self._put_file(key, upload)), waiting)
        except BaseException:
            upload.stop()
            raise

    def delete(self, *keys: str) -> None:
        """Remove objects, as far as they exist; S3 takes a thousand in one request."""
        requests.run(self._remove(keys))

    async def fetch(self, key: str, etag: str = "", size: int | None = None) -> bytes:
        """As `get`, in the loop of `requests`. With `size`, another size is an `ObjectConflictError`."""
        data, found = await self._patiently("read", key, lambda: self._get(key, etag, None))
        if size is not None and found != size:
            raise ObjectConflictError(f"{self.url(key)}: expected {size} bytes, found {found}")
        return bytes(data)

    async def fetch_range(self, key: str, start: int, stop: int, etag: str = "") -> memoryview:
        """As `get_range`, in the loop of `requests`, without a copy."""
        if stop <= start:
            return memoryview(b"")
        data, size = await self._patiently("read", key, lambda: self._get(key, etag, (start, stop)))
        if len(data) != stop - start:
            raise ObjectConflictError(f"{self.url(key)}: expected bytes up to {stop}, found {size} bytes")
        return data

    async def look(self, key: str = "") -> ObjectInfo:
        """As `head`, in the loop of `requests`."""

        async def looked() -> ObjectMeta:
            import obstore

            return await obstore.head_async(self._connected(READ), self._key(key))

        meta = await self._patiently("read", key, looked)
        return ObjectInfo(key, meta["size"], _version(meta))

    def _key(self, key: str) -> str:
        return "/".join(filter(None, (self.place.key, key)))

    def _connected(self, purpose: str) -> ObjectStore:
        return connect(self.place.store, self.limits, purpose)

    async def _get(self, key: str, etag: str, span: tuple[int, int] | None) -> tuple[memoryview, int]:
        """The bytes of an object or of a span of it, and the size of the object."""
        import obstore

        begun = time.monotonic()
        conditions: GetOptions = {} if span is None else {"range": span}
        if etag and not etag.startswith(("W/", _CHANGED)):  # If-Match never matches a weak one
            conditions["if_match"] = etag
        result = await obstore.get_async(self._connected(READ), self._key(key), options=conditions)
        found, size = _version(result.meta), result.meta["size"]
        if etag and found != etag:  # many web servers ignore If-Match
            raise ObjectConflictError(f"{self.url(key)} has changed")
        start, stop = result.range
        data = memoryview(await result.bytes_async())
        if len(data) != stop - start:
            raise ShortAnswerError
        traffic.answered(len(data), time.monotonic() - begun)
        return data, size

    async def _put_bytes(self, key: str, data: bytes, mode: PutMode) -> str:
        tries = 0

        async def put() -> str:
            import obstore

            nonlocal tries
            tries += 1
            purpose, condition = WRITE if mode == "overwrite" else ONCE, mode
            if self.place.scheme == "gs" and isinstance(mode, dict):  # it compares generations
                meta = await obstore.head_async(self._connected(READ), self._key(key))
                if _version(meta) != mode["e_tag"]:
                    raise ObjectConflictError(f"{self.url(key)} has changed")
                condition = {**mode, "version": meta["version"]}
            done = await obstore.put_async(
                self._connected(purpose), self._key(key), data, mode=condition, use_multipart=False
            )
            return done["e_tag"] or ""

        try:
            return await self._patiently("written", key, put)
        except ObjectConflictError:
            if tries == 1 or await self.fetch(key) != data:
                raise
        return (await self.look(key)).etag

    async def _put_file(self, key: str, upload: Upload) -> str:
        import obstore

        store = self._connected(WRITE)
        parts = upload.parts()
        put = obstore.put_async(
            store, self._key(key), parts, use_multipart=True, chunk_size=upload.part, max_concurrency=_UPLOADS
        )
        try:
            return await upload.finish(put)
        except FileNotFoundError as error:
            if cause_of(error).lacks_store:
                raise
            raise ShortAnswerError from None  # the end of the upload was answered, but the answer was lost

    async def _remove(self, keys: Sequence[str]) -> None:

        async def deleted() -> None:
            import obstore

            await obstore.delete_async(self._connected(WRITE), [self._key(key) for key in keys])

        if keys:
            try:
                await self._patiently("deleted", keys[0], deleted)
            except ObjectMissingError:  # perhaps not of the last one
                for key in keys if len(keys) > 1 else ():
                    await self._remove([key])

    async def _patiently(self, done: str, key: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """The result of `attempt`, repeated after passing failures until the patience ends.

        A read is cut off then: an answer may come in drops.
        """
        try:
            from obstore.exceptions import BaseError
        except ImportError:
            raise OptionError(f"{self.place.store} needs obstore: pip install 'iofast[remote]'") from None

        start, number, most, alike = time.monotonic(), 0, 0, 0  # `alike`: failures in a row of the same kind
        end = asyncio.get_running_loop().time() + self.limits.patience + _GRACE if done in _CUT_OFF else None
        reason = "no answer in time"
        text = f"{self.url(key)} cannot be {done}: {reason}, for {self.limits.patience:g} s"
        failure: IofastError = StorageError(text)
        while True:
            try:
                async with asyncio.timeout_at(end):
                    return await attempt()
            except TimeoutError:  # the failure of the last attempt says more
                pass
            except IofastError:
                raise
            except (BaseError, FileNotFoundError, ValueError, ShortAnswerError) as error:
                failure, found = failure_of(error, self.url(key), f"cannot be {done}", self.limits.patience)
                reason = cause_of(error).reason
                alike, most = (alike + 1 if found == most else 1), found
            wait = self.limits.wait(number, random.random())
            is_over = (passed := time.monotonic() - start) + wait > self.limits.patience
            number += 1
            if alike >= most or is_over:
                if isinstance(failure, StorageError):
                    failure.was_patient = is_over
                raise failure  # outside of `except`, so that it does not bring obstore's error, which may have secrets
            traffic.retries += 1
            if passed > _QUIET:
                _warn(self.place.store, reason, int(time.monotonic() // 60))
            await asyncio.sleep(wait)


@functools.lru_cache(maxsize=16)
def _warn(store: str, reason: str, minute: int) -> None:  # noqa: ARG001 - the cache makes it one a minute
    logging.getLogger("iofast").warning("%s: %s; trying again (for how long: %s)", store, reason, VARIABLE)


class _Pages:
    """The pages of a listing. After a failure, the next page begins behind the last object."""

    def __init__(self, store: Callable[[], ObjectStore], prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self._stream: ListStream[Sequence[ObjectMeta]] | None = None
        self._last: str | None = None

    async def next(self) -> Sequence[ObjectMeta] | None:
        """The next page, None after the last one."""
        import obstore

        if self._stream is None:
            self._stream = obstore.list(self._store(), self._prefix or None, offset=self._last, chunk_size=_PAGE)
        try:
            page = await self._stream.__anext__()
        except StopAsyncIteration:
            return None
        except BaseException:
            self._stream = None
            raise
        self._last = page[-1]["path"] if page else self._last
        return page


_CHANGED = "changed "  # begins a version of a web server without ETags


def _version(meta: ObjectMeta) -> str:
    etag = meta["e_tag"]
    if not etag:
        return f"{_CHANGED}{meta['last_modified'].timestamp():.0f}"
    return etag if etag.endswith('"') else f'"{etag}"'  # Azure lists ETags without quotes
