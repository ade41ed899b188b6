"""The monitor's benchmarks: the advice of docs/by-advice.md is followed, and what scores its verdicts is right."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import numpy as np
import pytest
from followed_advice import SCRIPT, environment, follow, followed
from kernel_images import jpeg, photo
from loader_sets import write_folder
from monitor_moments import moment
from monitor_snapshots import LATE, MAIN, stacks, training, worker
from places import ROOT

from benchmarks.verdicts import truth
from benchmarks.verdicts.program_runs import Run
from benchmarks.verdicts.programs import SUITES
from benchmarks.verdicts.score import Scored
from iofast.monitor.findings import Bound, Severity, StallBounds, Verdict
from iofast.monitor.probe.data_folders import parsed
from iofast.monitor.render.printed import to_json
from iofast.monitor.snapshot import Frame, Job, Snapshot, Tier, WorkerTask
from iofast.monitor.verdict import classify

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


# --- the labelled suite of the monitor in short: its simulated device and its truth are right; two programs are judged


def test_the_true_stall_is_where_the_device_idles_in_next(tmp_path: Path) -> None:
    """A busy device takes the waiting's cost away, and what was not training does not count."""
    marks = {
        "training": [(100, 200), (300, 400)],
        "next": [(90, 120), (140, 160), (210, 290), (300, 330)],
        "starts": [(295, 330)],
        "device": True,
    }
    (tmp_path / "timeline.json").write_text(json.dumps(marks))
    np.array([110, 150, 200, 310, 330, 390], np.int64).tofile(tmp_path / "busy.bin")
    found = truth.read(tmp_path)
    # idle while training: 100-110, 150-200, 310-330, 390-400; in next: 100-110, 150-160, 310-330
    assert found.stall == pytest.approx(40 / 200)
    assert found.starts == pytest.approx(20 / 200)
    assert found.within_epochs == pytest.approx(0.1 / 0.9)
    assert found.wait == pytest.approx(70 / 200)
    assert found.idle == pytest.approx(90 / 200)
    assert found.steps == 2
    assert truth.read(tmp_path, until=150).stall == pytest.approx(10 / 50)


def test_suites_are_large_and_apart() -> None:
    for name, programs in SUITES.items():
        assert len({program.name for program in programs}) == len(programs), name
    assert sum(program.loader not in ("zeromq", "grpc") for program in SUITES["final"]) >= 40
    assert not set(SUITES["change-tune"]) & set(SUITES["change-final"])


def truth_of(stall: float) -> truth.Truth:
    return truth.Truth(stall=stall, starts=0.0, wait=stall, idle=stall, seconds=10.0, steps=100)


@pytest.mark.parametrize(
    ("built", "stall", "right"),
    [
        ("compute-step", 0.02, {Bound.COMPUTE}),
        ("compute-step", 0.07, {Bound.COMPUTE, Bound.INPUT}),
        ("compute-step", 0.14, {Bound.INPUT}),
        ("sleep-1w", 0.02, {Bound.COMPUTE}),
        ("sleep-1w", 0.50, {Bound.INPUT}),
        ("launch", 0.17, {Bound.LAUNCH}),
    ],
)
def test_what_a_run_was_says_what_is_right(built: str, stall: float, right: set[Bound]) -> None:
    program = next(each for each in SUITES["final"] if each.name == built)
    for bound in (Bound.INPUT, Bound.COMPUTE, Bound.LAUNCH, Bound.UNKNOWN):
        verdict = Verdict(bound, None, StallBounds(stall, stall, Tier.INSIDE), Severity.NONE)
        one = Scored(Run(program, inside=True, true=truth_of(stall)), verdict)
        assert one.right is (bound in right)
        assert one.as_built is (bound in program.bounds)
        assert one.false_input is (bound is Bound.INPUT and Bound.INPUT not in right)
