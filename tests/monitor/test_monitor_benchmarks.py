"""The benchmark of predictions: the changes it applies, its page. Each step of docs/by-advice.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked
import pytest
from followed_advice import SCRIPT, environment, follow, followed
from kernel_images import jpeg, photo
from loader_sets import write_folder
from monitor_moments import moment
from monitor_snapshots import LATE, MAIN, stacks, training, worker
from places import ROOT

from benchmarks.bench_what_if import Beside, Scored, changed, page
from benchmarks.verdicts import loaders, program_runs
from benchmarks.verdicts.programs import SUITES, Program, find
from iofast.monitor.findings import Bound, Interference, Prediction
from iofast.monitor.probe.loader_source import parsed
from iofast.monitor.render.printed import to_json
from iofast.monitor.snapshot import Frame, Job, Snapshot, WorkerTask
from iofast.monitor.verdict import classify


def test_programs_that_are_changed_are_many_and_apart() -> None:
    tune, final = ({replace(one, seed=0) for one in SUITES[f"change-{split}"]} for split in ("tune", "final"))
    assert len(tune | final) == len(tune) + len(final) >= 40
    assert sum(one.loader == "webdataset" for one in tune | final) >= 10, "of other libraries' loaders"
    assert {one.load for one in tune} == {one.load for one in final} == {"sleep", "decode", "store"}


def test_every_change_is_applied() -> None:
    """To the loader that the monitor sees, and to nothing else."""
    program = find("change-tune", "decode-1w-0")

    def after(name: str, change: str = "", of: Program = program) -> dict[str, object]:
        new = changed(of, Prediction(name, change, 1.0, 2.0, ""))
        return {} if new is None else program_runs._changes("change-tune", new)

    assert after("workers", "num_workers=3") == {"workers": 3}
    assert after("pack") == {"load": "packed"}
    assert after("fastloader") == {"loader": "fast", "side": 64, "workers": max(1, len(os.sched_getaffinity(0)))}
    assert after("device", of=find("change-tune", "cpu-decode-1w")) == {"step_s": 0.0125}
    assert after("cores", of=find("change-tune", "decode-1w-one-core")) == {"extra": "", "workers": 2}
    sleeping = find("change-tune", "sleep-1w-0")
    assert (after("storage", of=sleeping), after("page_cache", of=sleeping)) == ({"cost_s": 0.025}, {"cost_s": 0.0})
    assert after("storage") == after("pack", of=sleeping) == {}


def test_packed_pictures_and_fast_loader_give_images_of_the_same_size(tmp_path: Path) -> None:
    program = replace(find("change-tune", "decode-1w-0"), workers=0, batch=4)
    kinds: tuple[dict[str, Any], ...] = ({}, {"load": "packed"}, {"loader": "fast", "side": 64, "workers": 1})
    for changes in kinds:
        images, labels = next(iter(loaders.loader_of(replace(program, **changes), tmp_path)))
        assert sorted(images.shape) == [3, 4, 64, 64]
        assert len(labels) == 4


def test_the_page_of_predictions() -> None:
    """An error is the distance of the band's middle from the measured rate; a wrong direction counts."""
    right = Scored("a", Prediction("workers", "num_workers=2", 1.8, 2.2, ""), 2.0)
    wrong = Scored("b", Prediction("pack", "iofast pack x", 1.2, 1.4, ""), 0.9)
    assert (right.error, right.inside, wrong.inside) == (0.0, True, False)
    text = page("tune", [right, wrong], [Beside("c", Interference(0.1, 0.2), 0.15), Beside("d", None, 0.3)], ["e"])
    assert "2 predictions on 2 programs" in text
    assert "| direction right | 97 % | 50% |" in text
    assert "| c | 10% – 20% | 15% |" in text
    assert "| d | – | 30% |" in text
    assert "Nothing was predicted for 1 programs: e." in text


# --- docs/by-advice.md; outcomes, not times


PAGE = ROOT / "docs" / "by-advice.md"
DECODING = {WorkerTask.DECODE: 0.9, WorkerTask.AUGMENT: 0.1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`images`, enough for a batch, and `train.py`: the script that the page starts with."""
    write_folder(tmp_path / "images", [jpeg(photo(320, 256, number)) for number in range(64)])
    (tmp_path / "train.py").write_text(SCRIPT.read_text())
    return tmp_path


def trained(folder: Path) -> bool:
    """Whether train.py runs to its last line."""
    own = environment(0) | {"OMP_NUM_THREADS": "1"}
    run = forked.run([sys.executable, "train.py"], cwd=folder, env=own, timeout=300)
    assert run.returncode == 0, run.stderr
    return re.search(r"^[\d,]+ images/s, loss [\d.]+$", run.stdout, re.MULTILINE) is not None


def seen(folder: Path, **changes: object) -> list[Snapshot]:
    """Forty seconds of train.py with a late loader, as the probes would see them."""
    source = parsed((folder / "train.py").read_text())
    given = {"doing": LATE, "idle": None, "image_root": "images", "file_bytes": 300_000, "source": source, **changes}
    return training(40, job=Job(100, 5000, "python train.py"), **given)


def advised(folder: Path, **changes: object) -> list[dict[str, object]]:
    """The advice on that, as --json prints it."""
    verdict = classify(seen(folder, **changes))
    assert verdict.bound is Bound.INPUT
    advice: list[dict[str, object]] = to_json(moment(1, last=verdict))["advice"]
    return advice


def test_workers_then_packing_then_the_loader(folder: Path) -> None:
    """The script goes on after each change that it is advised to make."""
    inline = stacks({Frame.LOADER_INLINE: 0.7, Frame.FORWARD: 0.3}, workers=DECODING)
    first = [one for one in advised(folder, processes=(MAIN,), stacks=inline) if one["name"] == "first_workers"]
    assert follow(folder, first) == ["first_workers"]
    assert re.search(
        r"loader = DataLoader\(.*num_workers=\d+, persistent_workers=True\)", (folder / "train.py").read_text()
    )
    assert trained(folder)
    waits = stacks({Frame.LOADER_WAIT: 0.7, Frame.FORWARD: 0.3}, workers=DECODING)
    busy = (MAIN, worker(1, 1.0))
    others = [one for one in advised(folder, processes=busy, stacks=waits) if one["name"] != "num_workers"]
    assert follow(folder, others) == ["pack_resize", "fastloader"]
    assert (folder / "train.lmdb").exists()
    assert 'dataset = FastDataset("train.lmdb")' in (folder / "train.py").read_text().replace("'", '"')
    assert trained(folder)
    assert follow(folder, []) == []


def test_the_page_shows_what_following_gives(folder: Path) -> None:
    """Its commands run, and its lines are those that the advice leaves in the script."""
    text = PAGE.read_text()
    assert f"python {SCRIPT.relative_to(ROOT)}" in text
    commands = [line for block in re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S) for line in block.splitlines()]
    packing = [line for line in commands if line.startswith("iofast pack ")]
    assert len(packing) == 1
    for number, diff in enumerate(re.findall(r"^```diff\n(.*?)^```", text, re.M | re.S)):
        if number == 1:
            run = forked.run([sys.executable, "-m", *packing[0].split()], cwd=folder, timeout=300)
            assert run.returncode == 0, run.stderr
        added = [line[1:].strip() for line in diff.splitlines() if line.startswith("+")]
        removed = [line[1:].strip() for line in diff.splitlines() if line.startswith("-")]
        script = (folder / "train.py").read_text()
        assert [line for line in removed if line not in script] == []
        (folder / "train.py").write_text(followed(script, "\n".join(added)))
        assert trained(folder)
    assert number == 1


def test_the_monitor_watches_the_script(folder: Path) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("the first steps on a GPU take longer than the script")
    command = [sys.executable, "-m", "iofast", "monitor", "--once", "--json", "--", sys.executable, "train.py"]
    run = subprocess.run(command, cwd=folder, env=environment(3), capture_output=True, text=True)
    assert re.search(r"[\d,]+ images/s", run.stdout), run.stderr
    seen = [line for line in run.stderr.splitlines() if line.startswith("{")]
    assert json.loads(seen[-1])["verdict"] in list(Bound)
