"""`map_sample` in processes: they end with their parent, and errors arrive with their cause."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loader_sets import eventually
from places import ROOT, SUPPORT

from iofast.errors import OptionError, WorkerError
from iofast.loader.mapping import Mapper, Sample, SampleFunction, check_picklable

Map = Callable[..., list[Sample]]


@dataclass
class Boxes:
    corners: torch.Tensor
    names: list[str]


class TwoArguments(Exception):  # noqa: N818 (named for what it takes)
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Boxes):
        return [value.corners]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for each in value for tensor in _tensors(each)] if isinstance(value, list | tuple) else []


def faulty(sample: Sample, rng: np.random.Generator) -> Sample:
    match sample["do"]:
        case "look":
            assert not any(tensor.is_shared() for tensor in _tensors(sample))
        case "two":
            raise TwoArguments("this", "that")
        case "value":
            raise ValueError(f"no such box: {sample['value']}")
        case "none":
            return None  # type: ignore[return-value]
        case "lock":
            return {"lock": threading.Lock()}
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "die once":
            with open(sample["path"], "a") as lives:
                lives.write("x")
                if lives.tell() == 1:
                    os._exit(3)
        case "sleep":
            time.sleep(100)
    drawn = [rng.random(), torch.rand(()).item(), random.random(), float(np.random.rand())]
    return {**sample, "pid": os.getpid(), "drawn": drawn}


class Unloadable:
    """A function that a process fails to load."""

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        return sample

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


@pytest.fixture(scope="module")
def mapped() -> Map:
    """map(samples, names) of a Mapper with one process that calls `faulty`."""
    return mapping(faulty)


def mapping(function: SampleFunction, processes: int = 1) -> Map:
    mapper = Mapper(function, processes)
    return lambda samples, names=None: mapper.map(samples, [(0, 0, row, 0) for row in range(len(samples))], names)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class TestWhatIsSent:
    @pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool])
    def test_tensors_anywhere(self, mapped: Map, dtype: torch.dtype) -> None:
        tensor = torch.ones(2, 3).to(dtype)
        sample = {
            "do": "look",
            "top": tensor,
            "extra": {"a": tensor[:1], "b": [tensor, (tensor, 1)]},
            "boxes": Boxes(tensor, ["x"]),
            "scalar": torch.tensor(1).to(dtype),
            "conjugate": tensor.conj(),
        }
        (made,) = mapped([sample])
        found, given = _tensors(made), _tensors(sample)
        assert len(found) == len(given) == 7
        for each, before in zip(found, given, strict=True):
            assert not each.is_shared()
            assert each.dtype == before.dtype == dtype
            assert each.tolist() == before.tolist()
        for each in found:  # writable, and not shared
            each.zero_()
        assert tensor.tolist() == torch.ones(2, 3).to(dtype).tolist()

    def test_tensors_that_have_no_array(self, mapped: Map) -> None:
        sample = {"do": "nothing", "sparse": torch.eye(3).to_sparse(), "weight": torch.nn.Parameter(torch.ones(2))}
        (made,) = mapped([sample])
        assert torch.equal(made["sparse"].to_dense(), torch.eye(3))
        assert isinstance(made["weight"], torch.nn.Parameter)
        assert not made["weight"].is_shared()

    def test_a_row_takes_no_batch_along(self, mapped: Map) -> None:
        batch = torch.zeros(1000, 1000)
        (made,) = mapped([{"do": "look", "row": batch[3]}])
        assert made["row"].untyped_storage().nbytes() == 4000


def _local() -> SampleFunction:
    def local(sample: Sample, rng: np.random.Generator) -> Sample:
        return sample

    return local


class TestFunctionsThatCannotGo:
    @pytest.mark.parametrize("function", [lambda sample, rng: sample, _local()], ids=["lambda", "local"])
    def test_local_functions(self, function: SampleFunction) -> None:
        with pytest.raises(OptionError, match="at the top level of a module, or leave map_processes out") as caught:
            check_picklable(function)
        assert "\n" not in str(caught.value)
        check_picklable(faulty)

    def test_without_a_file(self) -> None:
        script = (
            "from iofast.loader.mapping import check_picklable\ndef f(sample, rng): return sample\ncheck_picklable(f)\n"
        )
        run = subprocess.run([sys.executable, "-c", script], env=PATH, capture_output=True, text=True, timeout=60)
        assert "OptionError: map_processes needs a map_sample that a new process can import" in run.stderr

    def test_that_does_not_load(self) -> None:
        with pytest.raises(WorkerError, match=r"cannot be loaded in a new process: ValueError: .*no number"):
            mapping(Unloadable())([{}])


def test_the_generators_of_a_process_are_seeded_for_each_sample(mapped: Map) -> None:
    """The generators of libraries too, whatever was drawn before."""
    samples: list[Sample] = [{"do": "nothing"}] * 3
    drawn = [made["drawn"] for made in mapped(samples)]
    assert len({number for own in drawn for number in own}) == 12
    assert [made["drawn"] for made in mapped(samples)] == drawn
    assert [made["drawn"] for made in mapped(samples[:1])] == drawn[:1]


class TestMappingErrors:
    @pytest.mark.parametrize("processes", [0, 1])
    def test_say_which_sample(self, mapped: Map, processes: int) -> None:
        run = mapped if processes else mapping(faulty, 0)
        samples = [{"do": "nothing"}, {"do": "value", "value": 7}, {"do": "nothing"}]
        with pytest.raises(ValueError, match=r"^no such box: 7") as caught:
            run(samples, "sample number {}".format)
        assert caught.value.__notes__[0] == "in map_sample: sample number 1"
        assert not processes or 'raise ValueError(f"no such box' in caught.value.__notes__[1]
        with pytest.raises(OptionError, match="must return a dictionary, found NoneType") as wrong:
            run([{"do": "nothing"}] * 2 + [{"do": "none"}], str)
        assert wrong.value.__notes__[0] == "in map_sample: 2"

    def test_that_does_not_unpickle(self, mapped: Map) -> None:
        before = mapped([{"do": "nothing"}])
        with pytest.raises(WorkerError, match=r"map_sample raised .*TwoArguments: this and that") as caught:
            mapped([{"do": "two"}], str)
        assert caught.value.__notes__[0] == "in map_sample: 0"
        assert 'raise TwoArguments("this", "that")' in caught.value.__notes__[1]
        assert mapped([{"do": "nothing"}]) == before  # by the same process

    def test_a_result_that_cannot_be_sent(self, mapped: Map) -> None:
        with pytest.raises(OptionError, match=r"must return what can be pickled: TypeError.*lock") as caught:
            mapped([{"do": "nothing"}, {"do": "lock"}, {"do": "nothing"}], str)
        assert caught.value.__notes__[0] == "in map_sample: 1"

    def test_processes_that_die_and_cannot_be_started(self, monkeypatch: pytest.MonkeyPatch, mapped: Map) -> None:
        class Full:
            def Pipe(self) -> None:  # noqa: N802 (multiprocessing's name)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        mapped([{"do": "nothing"}])
        with monkeypatch.context() as patched:
            patched.setattr("iofast.loader.processes.get_context", lambda method: Full())
            for request in ("die", "nothing"):  # the first request meets a process, and kills it
                with pytest.raises(WorkerError, match="cannot be started: too many open files; see map_processes="):
                    mapped([{"do": request}])
        with pytest.raises(WorkerError, match=r"was killed or crashed before its work was done: signal 9, 2") as caught:
            mapped([{"do": "die"}], "number {}".format)
        assert caught.value.__notes__ == ["in map_sample: one of 1 samples, the first is number 0"]


@pytest.mark.slow  # 20 s of starting processes
class TestProcessesThatDie:
    def test_once_is_made_good(self, mapped: Map, tmp_path: Path) -> None:
        lives = tmp_path / "lives"
        once = {"do": "die once", "path": str(lives)}
        made = mapped([{"do": "nothing"}, once])
        assert lives.read_text() == "xx"
        assert mapped([{"do": "nothing"}, once]) == made

    @pytest.mark.parametrize("action", ["nothing", "die once"])
    def test_between_two_samples(self, mapped: Map, tmp_path: Path, action: str) -> None:
        """That does not count as dying of the second, although the request may still be sent to the dying process."""
        (first,) = mapped([{"do": "nothing"}])
        os.kill(first["pid"], signal.SIGKILL)
        (second,) = mapped([{"do": action, "path": str(tmp_path / "lives")}])
        assert action == "nothing" or (tmp_path / "lives").read_text() == "xx"
        assert first["pid"] != second["pid"]
        assert first["drawn"] == second["drawn"]

    def test_each_time(self) -> None:
        mapped = mapping(faulty)
        with pytest.raises(WorkerError, match=r"was killed or crashed before its first result .*__main__.*signal 9"):
            mapped([{"do": "die"}])
        assert mapped([{"do": "nothing"}])

    def test_the_others_live(self) -> None:
        run = mapping(faulty, 2)
        made: list[Sample] = []
        slow = threading.Thread(target=lambda: made.extend(run([{"do": "nothing"}] * 2)))
        slow.start()
        with pytest.raises(WorkerError):
            run([{"do": "die"}])
        slow.join()
        assert len({each["pid"] for each in made}) == 1
        assert alive(made[0]["pid"])


SCRIPT = """
import os, sys, time
from test_loader_mapping import faulty, mapping
from iofast.prefetch.jobs import Prefetch, PrefetchJob

class Mapped(PrefetchJob):
    def __init__(self, run): self.run_one = run
    def prepare(self): return [0]
    def run(self, number, part): self.made = self.run_one([{{"do": "sleep"}}])
    def finish(self): return self.made

def main():
    run = mapping(faulty, 2)
    print(run([{{"do": "nothing"}}])[0]["pid"], flush=True)
    global made  # alive until the interpreter ends
    made = Prefetch(lambda number: Mapped(run), 10, num_workers=1, depth=1)
    {end}

if __name__ == "__main__":
    main()
"""
FORKED = "child = os.fork()\n    if not child: {0}; os._exit(0)\n    os.waitpid(child, 0)"


PATH = os.environ | {"PYTHONPATH": f"{ROOT}:{Path(__file__).parent}:{SUPPORT}"}


def script(folder: Path, end: str, **options: Any) -> subprocess.Popen[str]:
    path = folder / "script.py"
    path.write_text(SCRIPT.format(end=end))
    return subprocess.Popen([sys.executable, path], env=PATH, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.slow  # 30 s of starting processes
class TestTheEnd:
    def test_of_the_loader(self) -> None:
        run = mapping(faulty)
        pid = run([{"do": "nothing"}])[0]["pid"]
        assert alive(pid)
        del run
        assert eventually(lambda: not Path(f"/proc/{pid}").exists())  # and was waited for

    @pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
    def test_of_a_parent_that_is_killed(self, tmp_path: Path, kind: signal.Signals) -> None:
        """While a process sleeps, and a forked child holds all that was open."""
        end = "time.sleep(1)\n    if not os.fork(): sys.stdout.close(); os.close(1); time.sleep(12); os._exit(0)\n"
        with script(tmp_path, end + "    time.sleep(100)") as parent:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            assert alive(pid)
            time.sleep(2)
            parent.send_signal(kind)
            parent.wait()
            assert eventually(lambda: not alive(pid), 5)

    def test_of_a_forked_child(self, tmp_path: Path) -> None:
        again = 'print(run([{"do": "nothing"}])[0]["pid"], flush=True)'
        with script(tmp_path, FORKED.format(again)) as parent:
            assert parent.stdout is not None
            pids = [int(line) for line in parent.stdout]
        assert len(pids) == len(set(pids)) == 2
        assert eventually(lambda: not any(map(alive, pids)), 5)

    def test_of_an_interpreter_whose_function_sleeps(self, tmp_path: Path) -> None:
        with script(tmp_path, "time.sleep(1)", stderr=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            begin = time.monotonic()
            _, errors = parent.communicate(timeout=60)
            assert time.monotonic() - begin < 8  # the threads alone would be waited for 10 s
        assert parent.returncode == 0
        assert not errors
        assert eventually(lambda: not alive(pid), 5)

    def test_of_a_process_of_multiprocessing(self, tmp_path: Path) -> None:
        """It runs no atexit functions, and waits for its own children."""
        end = 'import multiprocessing as mp\n    with_own = mp.get_context("fork").Process(target=run, args=('
        with script(tmp_path, end + '[{"do": "nothing"}],))\n    with_own.start(); with_own.join()') as parent:
            parent.communicate(timeout=60)
        assert parent.returncode == 0

    def test_unguarded_scripts_get_advice(self, tmp_path: Path) -> None:
        path = tmp_path / "unguarded.py"
        path.write_text("from test_loader_mapping import faulty, mapping\nmapping(faulty)([{'do': 'nothing'}])\n")
        run = subprocess.run([sys.executable, path], env=PATH, capture_output=True, text=True, timeout=120)
        last = run.stderr.splitlines()[-1]
        assert last.startswith("iofast.errors.WorkerError: a process that ran map_sample was killed or crashed before")
        assert 'if __name__ == "__main__":' in last
