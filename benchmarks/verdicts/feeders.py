"""Loaders of a program's own: generators fed by threads, processes, futures, event loops or other programs.

    python -m benchmarks.verdicts.feeders PROGRAM FILES ADDRESS    the other program: sends while its parent lives

Each is an endless iterator over batches. ZeroMQ and gRPC need their libraries; the loader of a plain socket waits at
the same place, in a generator's call of a C function.
"""

import asyncio
import functools
import importlib
import json
import multiprocessing
import os
import queue
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.verdicts import timed_datasets
from benchmarks.verdicts.programs import Program

_AHEAD: Final = 2  # batches that wait in a queue
_STARTING_S: Final = 60.0  # for another program to import and answer

Batch = torch.Tensor
Make = Callable[[int], Batch]


class UnavailableError(RuntimeError):
    """This machine cannot run the program; the message has the reason."""


def make_batch(dataset: timed_datasets.Samples, size: int, number: int) -> Batch:
    """The batch `number` of a dataset."""
    return torch.stack([dataset[number * size + at][0] for at in range(size)])


def _maker(program: Program, folder: Path) -> Make:
    return functools.partial(make_batch, timed_datasets.KINDS[program.load](program, folder), program.batch)


def _in_line(program: Program, folder: Path) -> Iterator[Batch]:
    make = _maker(program, folder)
    for number in range(sys.maxsize):
        yield make(number)


def _threads(program: Program, folder: Path) -> Iterator[Batch]:
    made: queue.Queue[Batch] = queue.Queue(_AHEAD)

    def fill(make: Make) -> None:
        for number in range(sys.maxsize):
            made.put(make(number))

    for _ in range(program.workers):
        threading.Thread(target=fill, args=(_maker(program, folder),), daemon=True).start()
    while True:
        yield made.get()


def _fill_from_process(made: Any, make: Make) -> None:
    torch.set_num_threads(1)
    for number in range(sys.maxsize):
        made.put(make(number).numpy())


def _processes(program: Program, folder: Path) -> Iterator[Batch]:
    context = multiprocessing.get_context("fork")
    made = context.Queue(_AHEAD)
    for _ in range(program.workers):
        context.Process(target=_fill_from_process, args=(made, _maker(program, folder)), daemon=True).start()
    while True:
        yield torch.from_numpy(made.get())


def _futures(pool: Executor, make: Make) -> Iterator[Batch]:
    ahead = deque(pool.submit(make, number) for number in range(_AHEAD))
    for number in range(_AHEAD, sys.maxsize):
        batch = ahead.popleft().result()
        ahead.append(pool.submit(make, number))
        yield batch


def _pool_of_threads(program: Program, folder: Path) -> Iterator[Batch]:
    return _futures(ThreadPoolExecutor(program.workers), _maker(program, folder))


def _pool_of_processes(program: Program, folder: Path) -> Iterator[Batch]:
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(program.workers, context, initializer=torch.set_num_threads, initargs=(1,))
    return _futures(pool, _maker(program, folder))


async def _fetch(program: Program, make: Make, number: int) -> Batch:
    """A batch from a slow storage, whose samples are requested at once."""
    if program.load == "sleep":
        await asyncio.sleep(program.cost_s)
        return torch.zeros(program.batch, 3, 32, 32, dtype=torch.uint8)
    return make(number)


def _event_loop(program: Program, folder: Path) -> Iterator[Batch]:
    make, loop = _maker(program, folder), asyncio.new_event_loop()
    for number in range(sys.maxsize):
        yield loop.run_until_complete(_fetch(program, make, number))


async def fetched(program: Program, folder: Path) -> AsyncIterator[Batch]:
    """Batches for `async for`."""
    make = _maker(program, folder)
    for number in range(sys.maxsize):
        yield await _fetch(program, make, number)


# --- other programs


def _start(program: Program, folder: Path) -> str:
    """Start the program that sends the batches; return its address."""
    address = Path(tempfile.mkdtemp(prefix="iofast-feeder-")) / "socket"
    command = [sys.executable, "-m", "benchmarks.verdicts.feeders", str(program), str(folder), str(address)]
    child = subprocess.Popen(command)
    until = time.monotonic() + _STARTING_S
    while not address.with_suffix(".ready").exists():
        if child.poll() is not None or time.monotonic() > until:
            raise UnavailableError(f"the program that sends batches did not start: status {child.poll()}")
        time.sleep(0.05)
    return f"unix:{address}"


def _library(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UnavailableError(f"{package} is not installed") from None


def _socket(program: Program, folder: Path) -> Iterator[Batch]:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_start(program, folder).removeprefix("unix:"))
    while True:
        left = struct.unpack("<I", connection.recv(4, socket.MSG_WAITALL))[0]
        yield _unpacked(program, connection.recv(left, socket.MSG_WAITALL))


def _zeromq(program: Program, folder: Path) -> Iterator[Batch]:
    zmq = _library("zmq", "pyzmq")
    pull = zmq.Context.instance().socket(zmq.PULL)
    pull.set_hwm(_AHEAD)
    pull.connect(_start(program, folder).replace("unix:", "ipc://"))
    while True:
        yield _unpacked(program, pull.recv())


def _grpc(program: Program, folder: Path) -> Iterator[Batch]:
    grpc = _library("grpc", "grpcio")
    for raw in grpc.insecure_channel(_start(program, folder)).unary_stream("/batches/Send")(b""):
        yield _unpacked(program, raw)


def _unpacked(program: Program, raw: bytes) -> Batch:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).reshape(program.batch, -1)


def _sent(program: Program, folder: Path) -> Iterator[bytes]:
    make = _maker(program, folder)
    return (make(number).numpy().tobytes() for number in range(sys.maxsize))


def _send_by_socket(batches: Iterator[bytes], address: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        server.listen()
        address.with_suffix(".ready").touch()
        connection, _ = server.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        for raw in batches:
            connection.sendall(struct.pack("<I", len(raw)) + raw)


def _send_by_zeromq(batches: Iterator[bytes], address: Path) -> None:
    zmq = _library("zmq", "pyzmq")
    push = zmq.Context.instance().socket(zmq.PUSH)
    push.set_hwm(_AHEAD)
    push.bind(f"ipc://{address}")
    address.with_suffix(".ready").touch()
    for raw in batches:
        push.send(raw)


def _send_by_grpc(batches: Iterator[bytes], address: Path) -> None:
    grpc = _library("grpc", "grpcio")
    method = grpc.unary_stream_rpc_method_handler(lambda _request, _context: batches)
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("batches", {"Send": method}),))
    server.add_insecure_port(f"unix:{address}")
    server.start()
    address.with_suffix(".ready").touch()
    server.wait_for_termination()


FEEDERS: Final[dict[str, Callable[[Program, Path], Iterator[Batch]]]] = {
    "generator": _in_line,
    "queue": _threads,
    "processes": _processes,
    "futures": _pool_of_threads,
    "pool": _pool_of_processes,
    "asyncio": _event_loop,
    "socket": _socket,
    "zeromq": _zeromq,
    "grpc": _grpc,
}
_SENDERS: Final = {"socket": _send_by_socket, "zeromq": _send_by_zeromq, "grpc": _send_by_grpc}


def main() -> None:
    program, folder, address = Program(**json.loads(sys.argv[1])), *sys.argv[2:]
    torch.set_num_threads(1)
    parent = os.getppid()

    def end_with_it() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        shutil.rmtree(Path(address).parent, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=end_with_it, daemon=True).start()
    try:
        _SENDERS[program.loader](_sent(program, Path(folder)), Path(address))
    except ConnectionError:
        pass  # the training has ended
    finally:
        shutil.rmtree(Path(address).parent, ignore_errors=True)


if __name__ == "__main__":
    main()
