"""A local file on its way to a store."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Iterator
from typing import Any

_PART = 8 << 20  # bytes of a part
_PARTS = 9_000  # most parts: S3 takes 10,000
_CLEAN_UP = 10.0  # seconds that an interrupted upload may take to remove its parts


class Upload:
    """A local file on its way to a store, which can be stopped."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self.size = os.stat(path).st_size
        self.part = max(_PART, -(-self.size // _PARTS))
        self._stopped = False
        self._ended = threading.Event()
        self._ended.set()

    def parts(self) -> Iterator[bytes]:
        """The file in parts. Raises `OSError`, also if the file changes or the upload is stopped."""
        rest = self.size
        with open(self._path, "rb", buffering=0) as file:
            while data := file.read(self.part):
                rest -= len(data)
                if self._stopped:
                    raise InterruptedError("the upload was stopped")  # obstore then removes the parts
                yield data
        if rest:
            raise OSError(f"{os.fspath(self._path)} changed while it was uploaded")

    async def finish(self, put: Awaitable[Any]) -> str:
        """Wait for obstore; when cancelled, until it has removed the parts."""
        self._ended.clear()
        task = asyncio.ensure_future(put)
        try:
            return str((await asyncio.shield(task))["e_tag"] or "")
        except asyncio.CancelledError:
            self._stopped = True
            with contextlib.suppress(BaseException):
                await task
            raise
        finally:
            self._ended.set()

    def stop(self) -> None:
        """Wait a little for the end of a cancelled upload."""
        self._ended.wait(_CLEAN_UP)
