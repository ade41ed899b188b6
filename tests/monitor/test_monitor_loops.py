"""Loops of training found in source, and training threads that wait in a loader of the program's own."""

# ruff: noqa: E501 (a stack is one line, as py-spy writes it)

import pytest
from monitor_stacks import Listing, stack

from iofast.monitor.probe.frames import Seen, frame_of
from iofast.monitor.probe.loops import Loops
from iofast.monitor.snapshot import Frame, WaitSource

# A line that ends with `# batch` is where the loop gets its batch; no other line is.
SHAPES = {
    "a generator": """
for x in batches():  # batch
    loss = net(x).sum()
    loss.backward()
""",
    "behind a bar, over several lines": """
for epoch in range(3):
    for number, batch in enumerate(  # batch
        tqdm(  # batch
            prefetched(loader),  # batch
        )  # batch
    ):  # batch
        loss = net(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
""",
    "beside a counter": """
for number, x in zip(count(), batches()):  # batch
    step(x)

def step(x):
    net(x).sum().backward()
""",
    "a queue": """
while True:
    x, y = queue.get()  # batch
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
""",
    "a queue until it is empty": """
while (x := queue.get()) is not None:  # batch
    net(x).sum().backward()
""",
    "a future, an iterator, a socket": """
def main():
    for step in range(100):
        x = ahead.popleft().result()  # batch
        y, z = next(it), socket.recv_pyobj()  # batch
        ahead.append(pool.submit(load, step))
        loss = net(x, y, z).sum()
        loss.backward()
""",
    "a method that makes one step": """
class Trainer:
    def run(self):
        while True:
            self.one()

    def one(self):
        x = self.queue.get()  # batch
        loss = self.net(x)
        loss.backward()
        self.optimizer.step()
""",
    "asyncio": """
async def train():
    async for x in batches():  # batch
        net(x).sum().backward()
""",
}
NO_BATCH = {
    "epochs": """
for epoch in epochs():
    loader = make(epoch)
    for x in loader:  # batch
        net(x).sum().backward()
""",
    "jobs": """
def train(job):
    for x in job:  # batch
        net(x).sum().backward()

while True:
    job = jobs.get()
    train(job)
""",
    "answers of another process": """
for x in loader:  # batch
    questions.put(x)
    y = answers.get()
    loss = criterion(y)
    loss.backward()
""",
    "answers to what a counting loop sends": """
while True:
    questions.put(weights)
    y = answers.get()
    loss = criterion(y)
    loss.backward()
""",
    "a generator that trains": """
def fit():
    for x in loader:  # batch
        loss = net(x)
        loss.backward()
        yield loss

for loss in fit():
    print(loss)
""",
    "requests": """
for request in requests():
    with torch.no_grad():
        reply(net(request))
""",
    "an evaluation": """
model.train(False)
for x in loader:
    model.eval()
    total += criterion(model(x))
""",
    "no Python": "for x in batches(:\n    loss.backward()\n",
    "another encoding": "\0",
}


def batch_lines(text: str) -> set[int]:
    """Where a loop gets a batch."""
    return {line for loop in Loops(text).loops for line in (*loop.head, *loop.gets)}


@pytest.mark.parametrize("name", [*SHAPES, *NO_BATCH])
def test_where_a_loop_gets_its_batch(name: str) -> None:
    text = (SHAPES | NO_BATCH)[name]
    assert batch_lines(text) == {at for at, line in enumerate(text.split("\n"), 1) if line.endswith("# batch")}


def test_a_file_that_was_edited_since() -> None:
    """Its lines are another function's now."""
    (loop,) = Loops(SHAPES["a future, an iterator, a socket"]).of("main")
    assert (loop.gets, loop.first <= 6 <= loop.last) == ({4, 5}, True)
    assert Loops(SHAPES["a future, an iterator, a socket"]).of("prepare") == []


def test_what_an_event_loop_runs() -> None:
    text = """
import asyncio

async def batches():
    yield await fetch()

async def train():
    async for x in batches():
        net(x).sum().backward()

async def serve():
    async for request in requests():
        await answer(request)

async def main(mode):
    await train()

asyncio.run(main(1))
asyncio.run(serve())
"""
    (loop,) = Loops(text).run_at(18)
    assert (loop.function, loop.awaits, loop.fed) == ("train", (8,), True)
    assert Loops(text).run_at(19) == []
    logging = text.replace("backward()", "backward()\n        await log()")
    assert not Loops(logging).run_at(19)[0].fed, "it waits for its log as well"


def test_hostile_files_are_no_trouble() -> None:
    assert Loops("(" * 100_000).loops == []
    assert Loops("-" * 100_000 + "1").loops == []
    calls = "\n".join(f"def f{n}(x):\n    f{n + 1}(x)\n    f{n - 1}(x)" for n in range(300))
    assert Loops(f"{calls}\nfor x in y():\n    f0(x)\n").loops == [], "functions that call each other end"


# --- training threads that wait in a loader of the program's own, and those that wait for something else


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
    assert (found.wait.source, found.wait.call, found.wait.line) == (source, call, line)
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
