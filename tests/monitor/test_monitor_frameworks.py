"""Stacks of frameworks and loaders that are not PyTorch's own, as py-spy 0.4.3 recorded them (framework_stacks.txt).

Those of ZeroMQ and gRPC are of a program with a generator of its own, `PROGRAM`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from monitor_stacks import Listing, stack

from iofast.monitor.probe.calls import Stack
from iofast.monitor.probe.frames import compiled, frame_of
from iofast.monitor.probe.worker_tasks import task_of, thread_task
from iofast.monitor.snapshot import Frame, WorkerTask

PROGRAM = """\
from feeder import net, opt, receive


def batches():
    while True:
        yield receive()


for x in batches():
    loss = net(x).sum()
    loss.backward()
    opt.step()
"""
OWN = ("pyzmq", "grpcio")


class Recorded(NamedTuple):
    """Of which library, of which thread (training, worker: a process, thread: a loader's), what it is at."""

    library: str
    thread: str
    kind: str
    stack: Stack


def recorded() -> list[Recorded]:
    """Of lines: library and version | thread | what it is at | calls; ~ is site-packages and ^ the standard library."""
    found = []
    for line in (Path(__file__).parent / "framework_stacks.txt").read_text().splitlines():
        library, thread, kind, calls = line.split(" | ", 3)
        found.append(Recorded(library, thread, kind, stack(calls)))
    return found


RECORDED = recorded()


@pytest.mark.parametrize("one", RECORDED, ids=lambda one: f"{one.library.split()[0]}-{one.thread}-{one.kind}")
def test_what_it_is_at(one: Recorded) -> None:
    if one.thread == "training":
        source = {"/u/train.py": PROGRAM} if one.library.startswith(OWN) else {}
        assert frame_of(one.stack.calls, Listing(source)).frame is Frame(one.kind)
        return
    task = task_of if one.thread == "worker" else thread_task
    assert task(one.stack.calls, lambda _: "") is WorkerTask(one.kind)


def test_none_of_them_is_compiled() -> None:
    """zero_grad() and Lightning's log() go through torch/_dynamo, where they are kept from being compiled."""
    dynamo = [one for one in RECORDED if any("torch/_dynamo/" in call.where for call in one.stack.calls)]
    assert {one.library.split()[0] for one in dynamo} >= {"lightning", "torchdata"}
    assert not any(compiled(one.stack.calls) for one in RECORDED)


def test_every_library_is_there() -> None:
    libraries = {one.library.split()[0] for one in RECORDED}
    assert libraries == {"lightning", "accelerate", "transformers", "torchdata", "webdataset", *OWN}
    kinds = {one.kind for one in RECORDED if one.thread == "training"}
    assert kinds >= {"loader-wait", "loader-inline", "loader-start", "forward", "backward", "optimizer", "validation"}
