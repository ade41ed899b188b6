"""A training process of the suite.

    python -m benchmarks.verdicts.program PROGRAM FILES SECONDS inside|outside

PROGRAM is the JSON of a `Program`; FILES is where the samples are, or are made. It warms up, writes `ready` in its
folder, trains for that long, and writes the times in next() to `timeline.json`. `inside`: it iterates over
`iofast.watch(loader)` with the simulated device's clock. Status 77: this machine cannot run it; one line gives the
reason.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.verdicts import loaders
from benchmarks.verdicts.feeders import UnavailableError, fetched
from benchmarks.verdicts.host import Cuda, Device, Network
from benchmarks.verdicts.programs import Program
from iofast import watch
from iofast.meter import Meter

UNAVAILABLE: Final = 77
_MEASURING_S: Final = 3.0
_SETTLING_S: Final = 1.5
_LAUNCHING_S: Final = 0.001  # device seconds a step while the loader is being measured
_CHECKPOINT: Final = 12_000_000  # floats
_ACCUMULATED: Final = 8  # batches


class Waits:
    """An iterable of batches that records the times in next() and the starts of epochs."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.next: list[tuple[int, int]] = []
        self.starts: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[Any]:
        begin = self.next[-1][0] if self.next else time.monotonic_ns()
        since = time.monotonic_ns()
        batches = iter(self.loader)
        self.next.append((since, time.monotonic_ns()))
        for number in range(sys.maxsize):
            since = time.monotonic_ns()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self.next.append((since, time.monotonic_ns()))
            if number == 0:
                self.starts.append((begin, time.monotonic_ns()))
            yield batch


class AsyncWaits(Waits):
    """The same for `async for` over the batches that `fetch` makes."""

    def __init__(self, fetch: Callable[[], AsyncIterator[Any]]) -> None:
        super().__init__(())
        self.fetch = fetch

    async def __aiter__(self) -> AsyncIterator[Any]:
        batches = self.fetch()
        while True:
            since = time.monotonic_ns()
            batch = await anext(batches)
            self.next.append((since, time.monotonic_ns()))
            yield batch


def answer(questions: Any, answers: Any, seconds: float) -> None:
    """In another process: answer each question after so long."""
    while True:
        question = questions.get()
        time.sleep(seconds)
        answers.put(question)


class Training:
    """One program at work."""

    def __init__(self, program: Program, folder: Path, files: Path, *, inside: bool) -> None:
        self.program, self.folder = program, folder
        self.device: Device | None = None
        if program.device:
            self.device = Device(folder, spin=program.spin, period_us=program.period_us)
        self.files, self.inside = files, inside
        self.computes(program.step_s if not program.compute else _LAUNCHING_S)
        self.trained: list[tuple[int, int]] = []
        self.steps = 0
        if program.extra == "asks":
            context = multiprocessing.get_context("fork")
            self.asking = context.Queue(), context.Queue()
            context.Process(target=answer, args=(*self.asking, program.cost_s), daemon=True).start()
        self.small = torch.ones(64)
        self.square = torch.rand(192, 192)

    def run(self, seconds: float) -> None:
        """Warm up, train for `seconds`, and write the timeline."""
        if self.program.loader in ("async", "none"):
            self._run_without_loader(seconds)
            return
        loader = loaders.loader_of(self.program, self.files)
        self.beside: Iterator[Any] | None = None
        if self.program.extra in ("second-loader", "idle-loader"):
            beside = loaders.idle_loader(self.program, self.files)
            self.beside = iter(self._watched(beside, "beside") if self.inside else beside)
            next(self.beside)
        waits = Waits(self._watched(loader, self.program.name) if self.inside else loader)
        self.end = sys.maxsize
        batches = self._warmed_up(waits)
        self._begin(seconds)
        self._train(waits, batches)
        self._write(waits)

    def _begin(self, seconds: float) -> None:
        """End the warm-up: from now on training is watched for `seconds`."""
        self.end = time.monotonic_ns() + int(1e9 * seconds)
        (self.folder / "pid").write_text(str(os.getpid()))  # a launcher has another one
        (self.folder / "ready").write_text(str(time.monotonic_ns()))

    def _run_without_loader(self, seconds: float) -> None:
        """A training that is a coroutine, or a server without training."""
        if self.inside:
            raise UnavailableError("iofast.watch() has no loader to watch: this program only runs outside")
        waits = AsyncWaits(partial(fetched, self.program, self.files))
        if self.program.loader == "none":
            self._begin(seconds)
            self.serve()
        else:
            self.end = time.monotonic_ns() + int(1e9 * _SETTLING_S)
            asyncio.run(self.train_fetched(waits))
            self._begin(seconds)
            asyncio.run(self.train_fetched(waits))
        self._write(waits)

    async def train_fetched(self, waits: AsyncWaits) -> None:
        """Steps with batches that a coroutine fetches."""
        since = time.monotonic_ns()
        async for batch in waits:
            self.train_step(batch)
            if time.monotonic_ns() > self.end:
                break
        self.trained.append((since, time.monotonic_ns()))

    def serve(self) -> None:
        """Wait for requests, of which none comes."""
        since = time.monotonic_ns()
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.5)
            while time.monotonic_ns() < self.end:
                with contextlib.suppress(TimeoutError):
                    server.accept()
        self.trained.append((since, time.monotonic_ns()))

    def _train(self, waits: Waits, batches: Iterator[Any] | None) -> None:
        """Epochs, and events between them, until the end. `batches`: an epoch that has begun."""
        while time.monotonic_ns() < self.end:
            self.train_epoch(waits, batches)
            batches = None
            if self.program.extra == "validation":
                self.validate()
            elif self.program.extra == "checkpoint":
                self.save_checkpoint()

    def computes(self, seconds: float) -> None:
        """Set the device seconds of a step from now on."""
        self.step_s = seconds
        if self.device is None:
            return
        looks = self.program.kernels if self.program.wait == "loop" else 1
        kernels = 1 if self.program.wait == "loop" else self.program.kernels
        self.network = Network(self.device, seconds / looks, kernels, 0 if looks > 1 else self.program.ops)

    def _watched(self, loader: Iterable[Any], name: str) -> Meter[Any]:
        meter = watch(loader, name=name)
        if self.device is not None:
            meter.clock.device, meter.clock.cuda = "cuda:0", Cuda(self.device)
        return meter

    def _warmed_up(self, waits: Waits) -> Iterator[Any]:
        """Begin an epoch, measure the loader in its first seconds, and set the device's share of a step."""
        first = 4 * max(1, self.program.workers) + 3  # batch from which on it is measured: others were made ahead
        number, since, until = 0, 0, sys.maxsize
        batches = iter(waits)
        while time.monotonic_ns() < until:
            if (batch := next(batches, None)) is None:
                batches = iter(waits)
                continue
            self.train_step(batch)
            number, now = number + 1, time.monotonic_ns()
            if number == first:
                since = now
            if number > first and until == sys.maxsize and now - since > 1e9 * _MEASURING_S:
                if self.program.compute:
                    self.computes((now - since) / (number - first) / 1e9 * self.program.compute)
                until = now + int(1e9 * _SETTLING_S)
        return batches

    def train_epoch(self, waits: Waits, batches: Iterator[Any] | None) -> None:
        """One epoch, or the rest of `batches`."""
        since = time.monotonic_ns()
        if self.program.extra == "hangs":
            self.stop_workers()
        for batch in waits if batches is None else batches:
            if self.beside is not None and self.program.extra == "second-loader":
                begin = time.monotonic_ns()
                next(self.beside)
                waits.next.append((begin, time.monotonic_ns()))
            self.train_step(batch)
            if self.program.extra == "sleeps":
                time.sleep(self.program.cost_s)
            elif self.program.extra == "asks":
                questions, answers = self.asking
                questions.put(self.steps)
                answers.get()
            if time.monotonic_ns() > self.end:
                break
        self.trained.append((since, time.monotonic_ns()))

    def stop_workers(self) -> None:
        """Stop all workers until the end."""
        workers = multiprocessing.active_children()

        def send(number: int) -> None:
            for worker in workers:
                os.kill(worker.pid or 0, number)

        send(signal.SIGSTOP)
        threading.Timer((self.end - time.monotonic_ns()) / 1e9, send, (signal.SIGCONT,)).start()

    def train_step(self, batch: Any) -> None:
        """Forward, backward, and a look at the loss."""
        if self.device is None:
            self.train_on_cpu()
        elif self.program.wait == "loop":
            self.train_looking(self.network)
        else:
            loss = self.network(batch)
            loss.backward()
            self.steps += 1
            if self.program.wait == "step" or (self.program.extra == "accumulate" and self.steps % _ACCUMULATED == 0):
                loss.item()

    def train_on_cpu(self) -> None:
        """Matrix products for as long as the step takes."""
        until = time.thread_time() + self.step_s
        while time.thread_time() < until:
            torch.mm(self.square, self.square)

    def train_looking(self, network: Network) -> None:
        """Losses that the host reads one by one and computes with."""
        for _ in range(self.program.kernels):
            loss = network(self.small)
            loss.item()
            for _ in range(self.program.ops):
                self.small = self.small.add(1.0)

    def validate(self) -> None:
        """A second of batches that come late."""
        for _ in range(20):
            time.sleep(0.04)
            if self.device is not None:
                loss = Network(self.device, 0.01, 1)(None)
                loss.item()

    def save_checkpoint(self) -> None:
        """Forty-eight megabytes to the disk."""
        torch.save({"weights": torch.zeros(_CHECKPOINT)}, self.folder / "checkpoint.pt")

    def _write(self, waits: Waits) -> None:
        if self.device is not None:
            self.device.synchronize()
            self.device.close()
            while not (self.folder / "busy.bin").exists():
                time.sleep(0.01)
        marks = {"next": waits.next, "starts": waits.starts, "training": self.trained, "device": self.program.device}
        (self.folder / "timeline.part").write_text(json.dumps(marks))
        (self.folder / "timeline.part").rename(self.folder / "timeline.json")


def main(words: list[str]) -> int:
    program, files = Program(**json.loads(words[0])), Path(words[1])
    files.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    try:
        training = Training(program, Path.cwd(), files, inside=words[3] == "inside")
        with loaders.surroundings(program, files):
            training.run(float(words[2]))
    except UnavailableError as error:
        print(error, file=sys.stderr)
        return UNAVAILABLE
    return 0


def _leave(status: int) -> None:
    """End without Python's shutdown: it unwinds threads that feed batches out of torch, which aborts the process."""
    for child in multiprocessing.active_children():
        child.terminate()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _leave(main(sys.argv[1:]))
