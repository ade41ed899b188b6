"""Training threads that wait in a loader of the program's own, and those that wait for something else.

Stacks as py-spy 0.4.3 recorded them on Python 3.11; of what they are at, the source of the program decides.
"""

# ruff: noqa: E501 (a stack is one line, as py-spy writes it)

from __future__ import annotations

import pytest
from monitor_stacks import Listing, stack

from iofast.monitor.probe.frames import Seen, frame_of
from iofast.monitor.snapshot import Frame, WaitSource

PROGRAM = """\
def batches():
    while True:
        yield queue.get()
        time.sleep(1)
        image = transform(Image.open(path))
        data = sock.recv(1 << 20)
        data = file.read()
        yield queue.get().to(device)

def main():
    for x in batches():
        loss = net(x).sum()
        loss.backward()
        optimizer.step()
        log.put(loss.item())
        time.sleep(1)

def serve():
    for request in requests():
        reply(net(request))

def direct():
    for step in range(10):
        x = queue.get()
        loss = net(x).sum()
        loss.backward()

def ask():
    for x in loader:
        questions.put(x)
        y = answers.get()
        loss = criterion(y)
        loss.backward()

def engine():
    for x in batches():
        runner.run(x)
        time.sleep(1)

async def train():
    async for x in fetched():
        net(x).sum().backward()

async def log():
    async for x in fetched():
        net(x).sum().backward()
        await writer.drain()

asyncio.run(train())
asyncio.run(log())
asyncio.run(serve())
def either():
    asyncio.run(train()) if training else server.accept()

either()
"""
T = "/u/train.py"
SOURCE = {T: PROGRAM}
MAIN = f"<module> ({T}:60);main ({T}:11)"
GET = "Queue.get (^queue.py:171);Condition.wait (^threading.py:327)"
RECV = (
    "Connection._recv_bytes (^multiprocessing/connection.py:430);Connection._recv (^multiprocessing/connection.py:395)"
)
PIPE = (
    f"Queue.get (^multiprocessing/queues.py:103);_ConnectionBase.recv_bytes (^multiprocessing/connection.py:216);{RECV}"
)
RESULT = "_result_or_cancel (^concurrent/futures/_base.py:317);Future.result (^concurrent/futures/_base.py:451);Condition.wait (^threading.py:327)"
FUTURES = f"Executor.map.<locals>.result_iterator (^concurrent/futures/_base.py:619);{RESULT}"
POOL = f"_chain_from_iterable_of_lists (^concurrent/futures/process.py:620);{FUTURES}"
IMAP = "IMapIterator.next (^multiprocessing/pool.py:861);Condition.wait (^threading.py:327)"
ONCE = "BaseEventLoop.run_forever (^asyncio/base_events.py:607);BaseEventLoop._run_once (^asyncio/base_events.py:1884);EpollSelector.select (^selectors.py:468)"
UNTIL = f"BaseEventLoop.run_until_complete (^asyncio/base_events.py:640);{ONCE}"
ASYNC = f"run (^asyncio/runners.py:190);Runner.run (^asyncio/runners.py:118);{UNTIL}"
HTTP = "get (~requests/api.py:73);HTTPResponse.begin (^http/client.py:318);SocketIO.readinto (^socket.py:706)"
BACKWARD = "Tensor.backward (~torch/_tensor.py:623);_engine_run_backward (~torch/autograd/graph.py:979)"
FORWARD = "Module._call_impl (~torch/nn/modules/module.py:1789);Linear.forward (~torch/nn/modules/linear.py:134)"


def seen(text: str) -> Seen:
    return frame_of(stack(text).calls, Listing(SOURCE))


@pytest.mark.parametrize(
    ("text", "frame", "source", "call", "line"),
    [
        (f"{MAIN};batches ({T}:3);{GET}", Frame.LOADER_WAIT, WaitSource.THREADS, "queue.get", 3),
        (f"{MAIN};batches ({T}:3);{PIPE}", Frame.LOADER_WAIT, WaitSource.PROCESSES, "multiprocessing.Queue.get", 3),
        (f"{MAIN};{FUTURES}", Frame.LOADER_WAIT, WaitSource.THREADS, "concurrent.futures.result_iterator", 11),
        (f"{MAIN};{POOL}", Frame.LOADER_WAIT, WaitSource.THREADS, "concurrent.futures.result_iterator", 11),
        (f"{MAIN};{IMAP}", Frame.LOADER_WAIT, WaitSource.PROCESSES, "multiprocessing.IMapIterator.next", 11),
        (f"{MAIN};batches ({T}:3);{UNTIL}", Frame.LOADER_WAIT, WaitSource.EVENTS, "asyncio.BaseEventLoop.run_until_complete", 3),
        (f"{MAIN};BackgroundGenerator.__next__ (~prefetch_generator/__init__.py:9);{GET}", Frame.LOADER_WAIT, WaitSource.THREADS, "prefetch_generator.BackgroundGenerator.__next__", 11),
        (f"{MAIN};batches ({T}:6)", Frame.LOADER_WAIT, WaitSource.SOCKET, "sock.recv", 6),
        (f"{MAIN};batches ({T}:4)", Frame.LOADER_INLINE, WaitSource.TIMER, "time.sleep", 4),
        (f"{MAIN};batches ({T}:7)", Frame.LOADER_INLINE, WaitSource.FILE, "file.read", 7),
        (f"{MAIN};batches ({T}:5);{HTTP}", Frame.LOADER_INLINE, WaitSource.FILE, "requests.get", 5),
        (f"{MAIN};batches ({T}:5);open (~PIL/Image.py:3000)", Frame.LOADER_INLINE, WaitSource.NONE, "", 5),
        (f"<module> ({T}:61);direct ({T}:24);{GET}", Frame.LOADER_WAIT, WaitSource.THREADS, "queue.get", 24),
        (f"<module> ({T}:49);{ASYNC}", Frame.LOADER_WAIT, WaitSource.EVENTS, "asyncio", 41),
    ],
)  # fmt: skip
def test_a_loader_of_its_own(text: str, frame: Frame, source: WaitSource, call: str, line: int) -> None:
    found = seen(text)
    assert (found.frame, found.trains) == (frame, True)
    assert found.wait is not None
    assert (found.wait.source, found.wait.call, found.wait.at.line) == (source, call, line)
    assert bool(found.inline) is (frame is Frame.LOADER_INLINE)


@pytest.mark.parametrize(
    ("text", "frame", "training"),
    [
        (f"{MAIN.replace(':11)', ':15)')};Queue.put (^queue.py:140);Condition.wait (^threading.py:320)", Frame.WAITING, True),  # its log
        (MAIN.replace(":11)", ":16)"), Frame.WAITING, True),  # sleeps on its own account
        (f"<module> ({T}:61);serve ({T}:19);requests (/u/web.py:3);{GET}", Frame.WAITING, False),
        (f"<module> ({T}:61);ask ({T}:31);{PIPE}", Frame.WAITING, True),
        (f"<module> ({T}:61);ask ({T}:29);batches ({T}:3);{PIPE}", Frame.LOADER_WAIT, True),
        (f"<module> ({T}:50);{ASYNC}", Frame.WAITING, True),  # for its log as well
        (f"<module> ({T}:51);{ASYNC}", Frame.WAITING, False),  # a server
        (f"<module> (/u/unseen.py:9);batches (/u/unseen.py:3);{GET}", Frame.WAITING, False),
        (f"<module> (/u/web.py:9);BaseServer.serve_forever (^socketserver.py:232);{ONCE.split(';')[-1]}", Frame.WAITING, False),
        (f"<module> (~ipykernel_launcher.py:18);start (~ipykernel/kernelapp.py:739);{ASYNC}", Frame.WAITING, False),
        (f"<module> ({T}:54);either ({T}:52);accept (^socket.py:294)", Frame.WAITING, False),
        ("<module> (/u/boss.py:9);Thread.join (^threading.py:1119);Thread._wait_for_tstate_lock (^threading.py:1139)", Frame.WAITING, False),
    ],
)  # fmt: skip
def test_waits_for_something_else(text: str, frame: Frame, training: bool) -> None:
    """Abstained from: neither the loader's nor the host's own work."""
    found = seen(text)
    assert (found.frame, found.trains) == (frame, training)
    assert found.wait is not None


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        (f"{MAIN};batches ({T}:8)", Frame.TRANSFER),
        (f"{MAIN};batches ({T}:5);{FORWARD}", Frame.FORWARD),  # a second network
        (f"{MAIN};fit ({T}:3);{BACKWARD}", Frame.BACKWARD),
        (f"{MAIN.replace(':11)', ':13)')};{BACKWARD}", Frame.BACKWARD),
        (f"<module> ({T}:61);evaluate (/u/test.py:4);main ({T}:11);batches ({T}:3);{GET}", Frame.VALIDATION),
        (f"{MAIN};batches ({T}:3);save_checkpoint (/u/save.py:9)", Frame.CHECKPOINT),
    ],
)
def test_what_is_known_stays(text: str, frame: Frame) -> None:
    assert seen(text).frame is frame
