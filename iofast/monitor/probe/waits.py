"""What a thread waits for, by the library that it waits in, or by the text of the line that called a C function."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from iofast.monitor.probe.calls import Call, Patterns, Text
from iofast.monitor.snapshot import WaitSource

_LIBRARIES = Patterns(  # that a thread sleeps in
    {
        WaitSource.SOCKET: r"(grpc|zmq|nats|kafka|pika|redis|websockets?)/",
        # an answer to a request of this thread is read by the thread itself, as a file is
        WaitSource.FILE: r"std/(http|urllib)/"
        r"|(requests|urllib3|httpx|aiohttp|boto3|botocore|s3fs|gcsfs|fsspec|google/cloud)/",
        WaitSource.EVENTS: r"std/asyncio/|(uvloop|trio|anyio)/",
        WaitSource.PROCESSES: r"std/(multiprocessing/(queues|connection|synchronize|pool)|subprocess)\.py$",
        WaitSource.THREADS: r"std/(queue|threading|concurrent/futures/\w+)\.py$",
    }
)
_SLEEPS = re.compile(  # the innermost function of a thread that sleeps in one of these
    r"std/(threading|queue|selectors|socket|ssl|subprocess|multiprocessing/(queues|connection|synchronize|pool)"
    r"|concurrent/futures/_base|asyncio/.*)\.py$|(zmq|grpc|uvloop)/"
)
_LINES = Patterns(  # in the text of a line that called into C; the group is the call
    {
        WaitSource.TIMER: r"([\w.]*\bsleep)\(",
        WaitSource.SOCKET: r"([\w.]*(?:\brecv\w*|\baccept|\bselect\.select|\.poll"
        r"|\bstd(?:in|out)(?:\.buffer)?\.read\w*))\(",
        WaitSource.THREADS: r"([\w.]*\bacquire)\(|([\w.]*\bget)\((?:\)|block|timeout|True)",
        WaitSource.FILE: r"([\w.]*(?:\bopen|\.read\w*|\.pread|\bnp\.(?:load|fromfile|memmap)|\btorch\.load"
        r"|\b(?:txn|cursor)\.get))\(",
    }
)


@dataclass(frozen=True, slots=True)
class Wait:
    """A call in which a thread waits, at a line of the user's code. WaitSource.NONE and "" where it works there."""

    source: WaitSource
    call: str
    at: Call


def wait_of(calls: Sequence[Call], text: Text) -> Wait | None:
    """What a thread with these calls, the innermost first, waits for; None where all of them are Python's own."""
    at = next((place for place, call in enumerate(calls) if call.user), None)
    if at is None:
        at = next((place for place, call in enumerate(calls) if not call.where.startswith("std/")), None)
    if at is None:
        return None
    within = calls[:at]
    if not within:
        source, name = _LINES.search(text(calls[0])) or (WaitSource.NONE, "")
        return Wait(source, name, calls[at])
    if not _SLEEPS.match(within[0].where):
        return Wait(WaitSource.NONE, "", calls[at])
    source = _LIBRARIES.match(*(call.where for call in within)) or WaitSource.SOCKET
    public = (call for call in reversed(within) if not call.name.startswith("_") or call.name.endswith("__"))
    return Wait(source, _named(next(public, within[-1])), calls[at])


def _named(call: Call) -> str:
    """A function as a user would write it: queue.get, multiprocessing.Queue.get, zmq.Socket.recv_pyobj."""
    if call.label == "torch/utils/data/dataloader.py:__next__":
        return "next"
    package, _, module = call.where.removeprefix("std/").removesuffix(".py").rpartition("/")
    if not package:
        return f"{module}.{call.name}"
    package = package if call.where.startswith("std/") else package.partition("/")[0]
    owner = f".{call.owner}" if call.owner.isidentifier() and not call.owner.startswith("_") else ""
    return f"{package.replace('/', '.')}{owner}.{call.name}"
