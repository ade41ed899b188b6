"""A packing run that is killed after a number of chunks, so that no test depends on speed."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import forked
from packing_runs import TRANSACTION
from places import ROOT

PROGRAM = """
import json, os, signal, sys
from pathlib import Path
from iofast.packing import PackOptions, work
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.run import run

class Killed(PackProgress):
    left = int(sys.argv[3])

    def step(self, images, size, failed):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)

work.TRANSACTION_BYTES = int(sys.argv[5])
with WorkerPool(1, fork=True) as pool:
    run(Path(sys.argv[1]), Path(sys.argv[2]), PackOptions(**json.loads(sys.argv[4])), Killed(), pool)
"""


def kill(source: Path, target: Path, chunks: int, **options: object) -> None:
    """Pack with one worker in a process that kills itself after `chunks` chunks."""
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        str(source),
        str(target),
        str(chunks),
        json.dumps(options),
        str(TRANSACTION),
    ]
    ended = forked.run(command, cwd=ROOT)
    assert ended.returncode == -signal.SIGKILL
