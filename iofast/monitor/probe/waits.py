"""What a thread waits for, by the library that it waits in, or by the text of the line that called a C function."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from iofast.monitor.probe.calls import Call, Text
from iofast.monitor.snapshot import WaitSource

_LIBRARIES: tuple[tuple[WaitSource, re.Pattern[str]], ...] = (  # that a thread sleeps in; the first that is met decides
    (WaitSource.SOCKET, re.compile(r"(grpc|zmq|nats|kafka|pika|redis|websockets?)/")),
    (
        WaitSource.FILE,  # what answers a request of this thread's own is read by it, as a file is
        re.compile(
            r"std/(http|urllib)/|(requests|urllib3|httpx|aiohttp|boto3|botocore|s3fs|gcsfs|fsspec|google/cloud)/"
        ),
    ),
    (WaitSource.EVENTS, re.compile(r"std/asyncio/|(uvloop|trio|anyio)/")),
    (WaitSource.PROCESSES, re.compile(r"std/(multiprocessing/(queues|connection|synchronize|pool)|subprocess)\.py$")),
    (WaitSource.THREADS, re.compile(r"std/(queue|threading|concurrent/futures/\w+)\.py$")),
    (WaitSource.SOCKET, re.compile(r"std/(socket|ssl|selectors)\.py$")),
)
_SLEEPS = re.compile(  # the innermost function of a thread that sleeps in one of these
    r"std/(threading|queue|selectors|socket|ssl|subprocess|multiprocessing/(queues|connection|synchronize|pool)"
    r"|concurrent/futures/_base|asyncio/.*)\.py$|(zmq|grpc|uvloop)/"
)
_LINES: tuple[tuple[WaitSource, re.Pattern[str]], ...] = (  # of the text of a line that called into C
    (WaitSource.TIMER, re.compile(r"([\w.]*\bsleep)\(")),
    (
        WaitSource.SOCKET,
        re.compile(r"([\w.]*(?:\brecv\w*|\baccept|\bselect\.select|\.poll|\bstd(?:in|out)(?:\.buffer)?\.read\w*))\("),
    ),
    (WaitSource.THREADS, re.compile(r"([\w.]*\bacquire)\(|([\w.]*\bget)\((?:\)|block|timeout|True)")),
    (
        WaitSource.FILE,
        re.compile(
            r"([\w.]*(?:\bopen|\.read\w*|\.pread|\bnp\.(?:load|fromfile|memmap)|\btorch\.load|\b(?:txn|cursor)\.get))\("
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Wait:
    """A call in which a thread waits, or none: Source.NONE and "" where it works. Of the line of the user's code."""

    source: WaitSource
    call: str
    at: Call


def wait_of(calls: Sequence[Call], text: Text) -> Wait | None:
    """What a thread with these calls, the innermost first, waits for; None where it is in no code to be named."""
    at = next((place for place, call in enumerate(calls) if call.user), None)
    if at is None:
        at = next((place for place, call in enumerate(calls) if not call.where.startswith("std/")), None)
    if at is None:
        return None
    within = calls[:at]
    if not within:
        source, name = _by_line(text(calls[0]))
        return Wait(source, name, calls[at])
    if not _SLEEPS.match(within[0].where):
        return Wait(WaitSource.NONE, "", calls[at])
    for source, pattern in _LIBRARIES:
        if any(pattern.match(call.where) for call in within):
            public = (call for call in reversed(within) if not call.name.startswith("_") or call.name.endswith("__"))
            return Wait(source, _named(next(public, within[-1])), calls[at])
    return Wait(WaitSource.NONE, "", calls[at])


def _by_line(line: str) -> tuple[WaitSource, str]:
    for source, pattern in _LINES:
        if (found := pattern.search(line)) is not None:
            return source, next(filter(None, found.groups()))
    return WaitSource.NONE, ""


def _named(call: Call) -> str:
    """A function as a user would write it: queue.get, multiprocessing.Queue.get, zmq.Socket.recv_pyobj."""
    package, _, module = call.where.removeprefix("std/").removesuffix(".py").rpartition("/")
    if not package:
        return f"{module}.{call.name}"
    package = package if call.where.startswith("std/") else package.partition("/")[0]
    owner = f".{call.owner}" if call.owner.isidentifier() and not call.owner.startswith("_") else ""
    return f"{package.replace('/', '.')}{owner}.{call.name}"
