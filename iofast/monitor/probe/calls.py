"""Stacks as py-spy writes them, parsed: what functions a thread was in, and whose code they are.

`py-spy record --format raw --threads --full-filenames` writes a line for each distinct stack, outermost call first, and
how often it was seen:

    process 7:"python train.py";thread (7): MainThread;<module> (/a/train.py:9);main (/a/train.py:5) 12

All of it comes from the watched process: what cannot be parsed is a call of nobody's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_MOST_CALLS = 400  # of one stack: deeper ones lose their outermost
_LONGEST = 4096  # characters of a path
_THREAD = re.compile(r"thread \((0x[0-9A-Fa-f]+|\d+)\)(?:: (.*))?$")
_CALL = re.compile(r"(.*?) \((.*?)(?::(\d+))?\)$")
# The part of a path that says which library's module it is. PyTorch and iofast may lie in a checkout.
_INSTALLED = re.compile(r"/(?:site|dist)-packages/(.+)$")
_STANDARD = re.compile(r"/lib(?:64)?/python3\.\d+t?/(.+)$")
_CHECKOUT = re.compile(
    r"/(torch/(?:nn|utils|autograd|optim|distributed|_dynamo|_inductor|_functorch|cuda|amp|multiprocessing)/.+"
    r"|iofast/(?:loader|stall|kernel|containers|source|transforms|pixels|order)/.+)$"
)


@dataclass(frozen=True, slots=True)
class Call:
    """A function that has been entered, at a line of it.

    `name` has no class in front of it, `owner` is the class or enclosing function, where Python tells (from 3.11 on).
    `where` is the module's file within its library, `torch/nn/modules/conv.py`; within Python's own,
    `std/threading.py`; and for the user's code the whole path.
    """

    name: str
    owner: str
    path: str
    line: int
    where: str
    user: bool


Text = Callable[[Call], str]  # the line of source that a call is at, "" where unknown


@dataclass(frozen=True, slots=True)
class Stack:
    """A thread's calls, the innermost first, and in how many looks they were these."""

    thread: int  # the system's number, where py-spy found it
    thread_name: str
    calls: tuple[Call, ...]
    looks: int


def parse(text: str) -> Iterator[Stack]:
    """The stacks in what py-spy wrote; lines that are none are passed over."""
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
    if (found := _INSTALLED.search(path)) is not None:
        return found[1], False
    if (found := _STANDARD.search(path)) is not None:
        return f"std/{found[1]}", False
    if (found := _CHECKOUT.search(path)) is not None:
        return found[1], False
    return path, True
