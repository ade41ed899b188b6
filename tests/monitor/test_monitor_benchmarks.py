"""Benchmarks of predictions and of advice: the changes they apply, their pages, each step of docs/by-advice.md."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import forked
import pytest
from kernel_images import jpeg, photo
from loader_sets import write_folder
from monitor_moments import moment
from monitor_snapshots import LATE, MAIN, stacks, training, worker
from places import ROOT

from benchmarks import bench_advice
from benchmarks.bench_advice import SCRIPT, follow, followed
from iofast.monitor.findings import Bound
from iofast.monitor.probe.loader_source import parsed
from iofast.monitor.render.printed import to_json
from iofast.monitor.snapshot import Frame, Job, Snapshot, WorkerTask
from iofast.monitor.verdict import classify

# --- docs/by-advice.md, and the benchmark that follows the advice; outcomes, not times


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
    environment = bench_advice._environment(0) | {"OMP_NUM_THREADS": "1"}
    run = forked.run([sys.executable, "train.py"], cwd=folder, env=environment, timeout=300)
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


def test_figures_of_the_page_are_the_benchmark_s() -> None:
    table = bench_advice.TABLE.search((ROOT / "benchmarks/results/by-advice.md").read_text())
    assert table is not None
    assert table[0] in PAGE.read_text()


def test_the_monitor_watches_the_script(folder: Path) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("the first steps on a GPU take longer than the script")
    rate, found = bench_advice.watched(folder, 3.0)
    assert rate > 0
    assert found["verdict"] in list(Bound)
