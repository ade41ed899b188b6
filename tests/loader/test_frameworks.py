"""The examples with their frameworks: nothing is sharded twice, and a resumed run continues exactly.

Each example runs as its user would start it, with two ranks where it can have them; those that need torch alone in
forked processes. `recording/sitecustomize.py` writes down the labels that reach the loss; a label is the number of its
image.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from itertools import chain
from pathlib import Path

import forked
import pytest
from kernel_images import jpeg, photo
from places import ROOT, SUPPORT
from web_server import web_server

from iofast import FastDataset, FastLoader, open_writer
from iofast import transforms as T
from iofast.errors import OptionError
from iofast.order import Blocks, Grouped, Mode, Shuffled

N, GLOBAL_BATCH, SIZE = 32, 8, 32
EPOCH = N // GLOBAL_BATCH  # steps
SHUFFLED = Shuffled()
STEPS, STOP = 10, 6  # in all, over two epochs and a half; and where the interrupted run ends, in the second


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("frameworks") / "numbered.lmdb", N)


def written(path: Path, count: int) -> Path:
    with open_writer(path, classes=[f"image {number}" for number in range(count)]) as writer:
        for number in range(count):
            writer.write({"jpg": jpeg(photo(40 + number, 48, number)), "cls": number})
    return path


def own_order(packed: Path, steps: int, order: Mode) -> list[list[int]]:
    """The global batches of a loader that no framework has touched."""
    loader = FastLoader(FastDataset(packed), GLOBAL_BATCH, order=order, drop_last=True, transform=[T.CenterCrop(SIZE)])
    epochs = [labels.tolist() for _ in range(-(-steps // EPOCH)) for _, labels in loader]
    return epochs[:steps]


def torchrun(ranks: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


def trained(
    command: list[str] | int, script: str, packed: Path | str, folder: Path, *options: object
) -> list[list[int]]:
    """Run an example in `folder`, by a command or on so many ranks: the labels of each step, by rank."""
    record = folder / "record"
    record.mkdir(parents=True)
    started(command, script, packed, record, *options)
    ranks = [map(json.loads, path.read_text().splitlines()) for path in sorted(record.iterdir())]
    return [list(chain(*labels)) for labels in zip(*ranks, strict=True)]


def started(command: list[str] | int, script: str, packed: Path | str, record: Path, *options: object) -> str:
    """What an example prints; the labels of each step go into `record`."""
    path = os.pathsep.join([str(ROOT / "tests" / "recording"), str(ROOT)])
    own = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "RECORD_TRAINING": str(record)}
    words = [str(ROOT / "examples" / script), str(packed), f"--size={SIZE}", *map(str, options)]
    if isinstance(command, int):
        ended = forked.run(
            [sys.executable, *words], cwd=record.parent, env=own, timeout=300, ranks=command, trains=True
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout
    run = subprocess.Popen(
        [*command, *words],
        cwd=record.parent,
        env=own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = run.communicate(timeout=300)
    except BaseException:
        os.killpg(run.pid, signal.SIGKILL)  # the ranks too: one that hangs would outlive its launcher
        raise
    assert run.returncode == 0, said
    return said


def check(first: list[list[int]], rest: list[list[int]], packed: Path, order: Mode = SHUFFLED) -> None:
    """Every image once an epoch over all ranks, in the loader's own order, with and without the interruption."""
    assert (len(first), len(rest)) == (STOP, STEPS - STOP)
    assert first + rest == own_order(packed, STEPS, order)
    for epoch in range(STEPS // EPOCH):
        assert once((first + rest)[epoch * EPOCH : (epoch + 1) * EPOCH])


def once(steps: list[list[int]]) -> bool:
    """Whether each image is there exactly once."""
    return sorted(chain(*steps)) == list(range(N))


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install iofast[frameworks]")


def test_ddp_from_a_store_goes_on_with_another_number_of_ranks(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="needs iofast[remote]")
    monkeypatch.setenv("IOFAST_CACHE", str(tmp_path / "cache"))
    options = [f"--global-batch={GLOBAL_BATCH}", "--groups=4", f"--checkpoint={tmp_path / 'saved'}"]
    with web_server(packed.parent) as url:
        place = f"{url}/{packed.name}"
        first = trained(2, "train_ddp.py", place, tmp_path / "first", *options, f"--steps={STOP}")
        rest = trained(1, "train_ddp.py", place, tmp_path / "rest", *options, f"--steps={STEPS}", "--resume")
    check(first, rest, packed, Grouped(4, Blocks(256, 4)))


def test_torch_dataloader(packed: Path, tmp_path: Path) -> None:
    options = [f"--batch-size={GLOBAL_BATCH}", f"--steps={2 * EPOCH}"]
    steps = trained(0, "train_dataloader.py", packed, tmp_path, *options)
    assert once(steps[:EPOCH])
    assert once(steps[EPOCH:])
    assert steps[:EPOCH] != steps[EPOCH:]


@pytest.mark.interop
@pytest.mark.parametrize(("workers", "stop"), [(0, STOP), (2, STOP), (0, EPOCH)])
def test_torchdata_goes_on_exactly(packed: Path, tmp_path: Path, workers: int, stop: int) -> None:
    needs("torchdata")
    options = ["--stateful", f"--batch-size={GLOBAL_BATCH}", f"--num-workers={workers}"]
    options.append(f"--checkpoint={tmp_path / 'saved'}")
    command, script = [sys.executable], "train_dataloader.py"
    first = trained(command, script, packed, tmp_path / "first", *options, f"--steps={stop}")
    rest = trained(command, script, packed, tmp_path / "rest", *options, f"--steps={3 * EPOCH}", "--resume")
    steps = first + rest
    assert steps == trained(command, script, packed, tmp_path / "whole", *options, f"--steps={3 * EPOCH}")
    assert [once(steps[start : start + EPOCH]) for start in (0, EPOCH, 2 * EPOCH)] == [True] * 3


@pytest.mark.interop
@pytest.mark.parametrize("own_launcher", [True, False])
def test_lightning(packed: Path, tmp_path: Path, own_launcher: bool) -> None:
    needs("lightning")
    command = [sys.executable] if own_launcher else torchrun(2)
    options = ["--devices=2", "--accelerator=cpu", "--batch-size=4"]
    options += [f"--save-every={STOP}", f"--checkpoints={tmp_path / 'saved'}"]
    first = trained(command, "train_lightning.py", packed, tmp_path / "first", *options, f"--steps={STOP}")
    rest = trained(command, "train_lightning.py", packed, tmp_path / "rest", *options, f"--steps={STEPS}", "--resume")
    check(first, rest, packed)


@pytest.mark.interop
@pytest.mark.parametrize("devices", [1, 2])
def test_lightnings_limits(packed: Path, tmp_path: Path, devices: int) -> None:
    """Epochs that end early are other samples each time, and those that are to be the same are the same."""
    needs("lightning")
    script, options = str(SUPPORT / "lightning_limits.py"), [f"--devices={devices}", "--max_epochs=3"]
    options.append(f"--batch_size={GLOBAL_BATCH // devices}")
    limited, same = (
        trained([sys.executable], script, packed, tmp_path / name, *options, f"--{name}=2")
        for name in ("limit_train_batches", "overfit_batches")
    )
    epochs = own_order(packed, 3 * EPOCH, SHUFFLED)
    assert limited == [batch for start in (0, EPOCH, 2 * EPOCH) for batch in epochs[start : start + 2]]
    assert same == [list(range(GLOBAL_BATCH)), list(range(GLOBAL_BATCH, 2 * GLOBAL_BATCH))] * 3


@pytest.mark.interop
@pytest.mark.parametrize(
    ("script", "module", "options"),
    [
        ("train_accelerate.py", "accelerate", ["--cpu", "--checkpoint={}"]),
        ("train_trainer.py", "transformers", ["--cpu", f"--save-every={STOP}", "--checkpoints={}"]),
        ("train_timm.py", "timm", ["--device=cpu", "--model=resnet10t", "--epochs=3", "--checkpoint={}"]),
    ],
)
def test_two_ranks_of_torchrun(packed: Path, tmp_path: Path, script: str, module: str, options: list[str]) -> None:
    needs(module)
    options = [option.format(tmp_path / "saved") for option in options] + ["--batch-size=4"]
    first = trained(torchrun(2), script, packed, tmp_path / "first", *options, f"--steps={STOP}")
    rest = trained(torchrun(2), script, packed, tmp_path / "rest", *options, f"--steps={STEPS}", "--resume")
    check(first, rest, packed)


@pytest.mark.interop
def test_accelerate_counts_each_image_once(tmp_path: Path) -> None:
    needs("accelerate")
    (tmp_path / "record").mkdir()
    options = ["--cpu", "--batch-size=4", "--steps=1", f"--checkpoint={tmp_path / 'saved'}"]
    odd = written(tmp_path / "odd.lmdb", 33)
    assert " of 33 images right" in started(torchrun(2), "train_accelerate.py", odd, tmp_path / "record", *options)


@pytest.mark.interop
def test_accelerate_prepares_nothing(packed: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    loader = FastLoader(FastDataset(packed), GLOBAL_BATCH, transform=[T.CenterCrop(SIZE)])
    assert accelerate.Accelerator(cpu=True).prepare(loader) is loader
    with pytest.raises(OptionError, match=r"^a FastLoader cannot be rebuilt .*load_state_dict"):
        accelerate.skip_first_batches(loader, 1)
    with pytest.raises(OptionError, match=r"^a FastLoader cannot be rebuilt "):
        accelerate.Accelerator(cpu=True).prepare_data_loader(loader)
