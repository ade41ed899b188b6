"""Parsed stacks of py-spy: which functions a thread was in, whose code they are, and what it waits for there.

`py-spy record --format raw --threads --full-filenames` writes a line for each distinct stack, outermost call first,
with the number of looks that saw it:

    process 7:"python train.py";thread (7): MainThread;<module> (/a/train.py:9);main (/a/train.py:5) 12

All of it comes from the watched process: parts that cannot be parsed are skipped.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from iofast.monitor.snapshot import WaitSite, WaitSource

Kind = TypeVar("Kind")

_MOST_CALLS = 400  # of one stack: deeper ones lose their outermost
_LONGEST = 4096  # characters of a path
_THREAD = re.compile(r"thread \((0x[0-9A-Fa-f]+|\d+)\)(?:: (.*))?$")
_CALL = re.compile(r"(.*?) \((.*?)(?::(\d+))?\)$")
_LIBRARIES = (  # the part of a path that names a library's module; PyTorch and iofast may be installed from a checkout
    ("", re.compile(r"/(?:site|dist)-packages/(.+)$")),
    ("std/", re.compile(r"/lib(?:64)?/python3\.\d+t?/(.+)$")),
    (
        "",
        re.compile(
            r"/(torch/(?:nn|utils|autograd|optim|distributed|_dynamo|_inductor|_functorch|cuda|amp|multiprocessing)/.+"
            r"|iofast/(?:loader|meter|prefetch|gpu|kernel|containers|source|transforms|pixels|order)/.+)$"
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Call:
    """A function that has been entered, at a line of it.

    `name` is unqualified; `owner` is the class or enclosing function, known from Python 3.11 on. `where` is the file
    within its library, `torch/nn/modules/conv.py`; within the standard library, `std/threading.py`; for the user's code
    the whole path.
    """

    name: str
    owner: str
    path: str
    line: int
    where: str
    user: bool

    @property
    def label(self) -> str:
        """`torch/nn/modules/conv.py:forward`: what patterns match."""
        return f"{self.where}:{self.name}"


Text = Callable[[Call], str]  # the line of source that a call is at, "" where unknown


@dataclass(frozen=True, slots=True)
class Stack:
    """A thread's calls, the innermost first, and the number of looks that saw them."""

    thread: int  # the system's number, where py-spy found it
    thread_name: str
    calls: tuple[Call, ...]
    looks: int


class Patterns(Generic[Kind]):
    """Regular expressions by kind of thing; the first expression that matches decides."""

    def __init__(self, patterns: Mapping[Kind, str], flags: int = 0) -> None:
        self._patterns = {kind: re.compile(pattern, flags) for kind, pattern in patterns.items()}

    def match(self, *texts: str) -> Kind | None:
        """The kind whose expression matches the beginning of one of these texts."""
        return next((kind for kind, pattern in self._patterns.items() if any(map(pattern.match, texts))), None)

    def search(self, text: str) -> tuple[Kind, str] | None:
        """The kind whose expression occurs in a text, and its first group, or all that it matched."""
        for kind, pattern in self._patterns.items():
            if (found := pattern.search(text)) is not None:
                return kind, next(filter(None, found.groups()), found.group())
        return None


def parse(text: str) -> Iterator[Stack]:
    """The stacks in the output of py-spy; other lines are skipped."""
    for line in text.splitlines():
        body, _, count = line.rpartition(" ")
        if body and count.isdecimal() and (stack := _stack(body, int(count))) is not None:
            yield stack


def call(name: str, path: str, line: int) -> Call:
    """A call by its parts. `name` may be qualified: Dataset.__getitem__, run.<locals>.step."""
    path = path[-_LONGEST:]
    owner, _, last = name.rpartition(".")
    where, user = _whose(path)
    return Call(last or name, owner.rpartition(".")[2], path, line, where, user)


def _stack(body: str, looks: int) -> Stack | None:
    thread, name, calls = None, "", []
    for part in body.split(";"):
        if thread is None:
            if (found := _THREAD.match(part)) is not None:
                thread, name = int(found[1], 0), found[2] or ""
        elif (found := _CALL.match(part)) is not None:
            calls.append(call(found[1], found[2], int(found[3] or 0)))
    if thread is None or not calls:
        return None
    return Stack(thread, name, tuple(reversed(calls[-_MOST_CALLS:])), looks)


def _whose(path: str) -> tuple[str, bool]:
    if path.startswith("<"):  # <frozen importlib._bootstrap>, <string>, <eval_with_key>.3
        return f"std/{path}", path.startswith(("<stdin>", "<ipython"))
    for prefix, library in _LIBRARIES:
        if (found := library.search(path)) is not None:
            return prefix + found[1], False
    return path, True


# --- what a thread waits for, by the library that it waits in, or by the text of the line that called a C function

_SLEEPS_IN = Patterns(  # that a thread sleeps in
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


def wait_of(calls: Sequence[Call], text: Text) -> WaitSite | None:
    """Where and for what a thread with these calls, the innermost first, waits: WaitSource.NONE if it works there.

    The line is the user's. None where all calls are Python's own.
    """
    at = next((place for place, call in enumerate(calls) if call.user), None)
    if at is None:
        at = next((place for place, call in enumerate(calls) if not call.where.startswith("std/")), None)
    if at is None:
        return None
    user, within = calls[at], calls[:at]
    source, call = WaitSource.NONE, ""
    if not within:
        source, call = _LINES.search(text(calls[0])) or (source, call)
    elif _SLEEPS.match(within[0].where):
        source = _SLEEPS_IN.match(*(each.where for each in within)) or WaitSource.SOCKET
        public = (each for each in reversed(within) if not each.name.startswith("_") or each.name.endswith("__"))
        call = _named(next(public, within[-1]))
    return WaitSite(user.path, user.line, user.name, call, source)


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
