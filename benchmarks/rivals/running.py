"""A contender's process: it is stopped between its turns, so that only one of them works at a time."""

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks.rivals.peers.protocol import Options
from benchmarks.slow_device import evict, files_of, fill
from tools.environments import ROOT
from tools.processes import family, memory, sampled

TIMEOUT = 300  # seconds for one run
_LOOK_S = 0.1  # between two looks at the memory


class Measured(float):
    """Images a second of a run, with what else was seen of it."""

    cpu_s: float  # processor time of all processes, per 1000 images
    read: int  # bytes that devices gave to all processes
    said: dict[str, Any]  # what the script said


class ContenderError(Exception):
    """A contender that ended or said nothing; the message has the end of its output."""


class Running:
    """A script of `peers/` with a loader that is open."""

    def __init__(self, command: Sequence[str | Path], options: Options, log: Path) -> None:
        self._log, self._options = log, options
        self.bytes = sum(each.stat().st_size for each in files_of(Path(options.data)))  # of its data
        # The last is PyTorch's own advice for processors: large batches in huge pages cost fewer page faults.
        environment = os.environ | {"PYTHONPATH": f"{ROOT}", "PYTHONUNBUFFERED": "1", "THP_MEM_ALLOC_ENABLE": "1"}
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, "load", json.dumps(asdict(options))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,
            )
        try:
            # looking holds a process up, so only the first run is watched
            with sampled(lambda: memory(self._process.pid), _LOOK_S) as found:
                self.first = self._measured()
        except BaseException:  # also a signal: a stopped process would stay for ever
            self.close()
            raise
        self.peak = max(found)

    def again(self) -> Measured:
        """Run again; before it all its files enter the page cache, or leave it if the run is to be cold.

        Some systems reclaim pages that nobody has used for a minute, and there are minutes between two runs.
        """
        (evict if self._options.is_cold else fill)(Path(self._options.data))
        os.killpg(self._process.pid, signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._measured()

    @property
    def is_alive(self) -> bool:
        """Whether it has given all answers so far."""
        return self._process.poll() is None

    def close(self) -> None:
        """End all of its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _measured(self) -> Measured:
        cpu, read = self._used()
        said = self._answer()
        made, (cpu_after, read_after) = Measured(said["images"] / said["seconds"]), self._used()
        made.cpu_s, made.read = 1000 * (cpu_after - cpu) / said["images"], read_after - read
        made.said = said
        os.killpg(self._process.pid, signal.SIGSTOP)
        return made

    def _answer(self) -> dict[str, Any]:
        lines: list[str] = []
        assert self._process.stdout is not None
        reader = threading.Thread(target=lambda: lines.append(self._said()), daemon=True)
        reader.start()
        reader.join(TIMEOUT)
        if not lines or not lines[0]:
            self.close()
            raise ContenderError(self._log.read_text(errors="replace")[-2000:] or "no answer in time")
        found: dict[str, Any] = json.loads(lines[0])
        return found

    def _said(self) -> str:
        """The next line of JSON; libraries print others."""
        assert self._process.stdout is not None
        return next((line for line in self._process.stdout if line.startswith("{")), "")

    def _used(self) -> tuple[float, int]:
        """Seconds of processor time and bytes of devices, of living processes.

        The time is also that of ended ones for which their parents have waited.
        """
        cpu, read = 0.0, 0
        for each in family(self._process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                cpu += sum(each.cpu_times()[:4])
                read += each.io_counters().read_bytes
        return cpu, read


def pack(command: Sequence[str | Path], source: Path, target: Path, options: Options) -> None:
    """Let a contender write its container."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}"}
    words = [*command, "pack", source, target, json.dumps(asdict(options))]
    ended = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=TIMEOUT)
    if ended.returncode:
        raise ContenderError(ended.stderr[-2000:])
