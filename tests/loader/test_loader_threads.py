"""Operations of torch in a loader's threads run in those alone, and training's own keep their number of threads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from loader_sets import photographs, write_lmdb
from todays import todays

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

# In a process of its own: torch starts its threads at the first use in each thread.
PROGRAM = """
import json, os, sys, threading
import torch
from iofast import FastDataset, FastLoader, transforms as T

def work(where):
    "Note the limit there, and how many threads begin when elements and matrices are computed for the first time."
    if where not in seen:
        before = set(os.listdir("/proc/self/task"))
        torch.ones(3_000_000).exp()
        matrix = torch.ones(400, 400)
        matrix @ matrix
        seen[where] = torch.get_num_threads(), len(set(os.listdir("/proc/self/task")) - before)

def per_sample(sample, rng):
    work("sample")
    return sample

def per_batch(batch):
    work("batch")
    return batch

seen = {}
if sys.argv[2] == "set":
    torch.set_num_threads(3)
seen["before"] = torch.get_num_threads()
loader = FastLoader(
    FastDataset(sys.argv[1]), 4, transform=T.train(64), dtype=torch.float32, num_workers=1, prefetch=1,
    readahead=False, map_sample=per_sample, map_batch=per_batch,
)
batches = iter(loader)
next(batches)
work("training")
later = threading.Thread(target=work, args=("later thread",))
later.start()
later.join()
print(json.dumps(seen))
"""


@pytest.mark.parametrize("limit", todays(["set", "environment"]))
def test_each_thread_computes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Whether training's number of threads was set by it, or by its environment."""
    write_lmdb(tmp_path / "set.lmdb", photographs(8))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False) if limit == "set" else monkeypatch.setenv(name, "3")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "set.lmdb"), limit]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")
    seen = json.loads(run.stdout)
    threads = seen["before"]  # MKL allows no more than there are cores, unless it was said in the program
    assert threads == 3 or limit == "environment"
    assert seen["sample"] == seen["batch"] == [1, 0]
    assert seen["training"] == seen["later thread"] == [threads, threads - 1]
