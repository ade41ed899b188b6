"""The lines that advice writes have the names of the program's own source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from monitor_snapshots import MAIN, SYSTEM, stacks, training, worker
from proc_folder import ProcFolder

from iofast.monitor.advice import advise
from iofast.monitor.findings import Advice, Bound, Cause, Severity, StallBounds, Verdict
from iofast.monitor.probe.loader_source import loader_source, named_paths, parsed
from iofast.monitor.situation import Situation
from iofast.monitor.snapshot import Frame, LoaderSource, Tier, WorkerTask
from iofast.monitor.training import Training

OWN = LoaderSource("train_loader", "train_set", "args.batch", shuffle=True, drop_last=False, side=192, root="images")
SCRIPT = """
val_loader = DataLoader(val_set, 100)
def loaders(args):
    train_set = ImageFolder("images", Compose([RandomResizedCrop(192), ToTensor()]))
    train_loader: DataLoader = DataLoader(train_set, batch_size=args.batch, shuffle=(sampler is None), num_workers=8)
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (SCRIPT, OWN),
        ("loader = DataLoader(data, sampler=DistributedSampler(data))", ("loader", "data", "1", True, False, 224, "")),
        (
            "ROOT = '/data'\nself.it = D.DataLoader(ImageFolder(root=ROOT), 8, False, drop_last=True)",
            ("self.it", "dataset", "8", False, True, 224, "/data"),
        ),
        ("def f():\n    return DataLoader(self.data, 4)", ("loader", "self.data", "4", False, False, 224, "")),
        ("data = ImageFolder(args.data)\nx = DataLoader(data)", ("x", "data", "1", False, False, 224, "")),
        ("loader = FastLoader(data, 8)", None),
        ("def (", None),
    ],
)
def test_names_and_options(text: str, found: Any) -> None:
    assert parsed(text) == (LoaderSource(*found) if isinstance(found, tuple) else found)


def test_of_a_running_script(tmp_path: Path, proc: ProcFolder) -> None:
    """Its folder is relative to the program's, not to the monitor's."""
    (tmp_path / "train.py").write_text(SCRIPT)
    folder = proc.process(10, line=b"python\0-u\0train.py\0--epochs\x003\0")
    (folder / "cwd").symlink_to(tmp_path)
    assert loader_source(10) == replace(OWN, root=str(tmp_path / "images"))
    proc.process(10, line=b"python\0-m\0train\0")
    assert loader_source(10) is None
    assert loader_source(11) is None


def test_paths_in_a_command(tmp_path: Path, proc: ProcFolder) -> None:
    """The root of a data set that only the command names, as it was typed."""
    (tmp_path / "my images").mkdir()
    line = b"python\0train.py\0--data=my images\0-o\0.\0..\0./logs\0/elsewhere\0--lr=\0"
    (proc.process(10, line=line) / "cwd").symlink_to(tmp_path)
    names = ("python", "train.py", "my images", "-o", "logs")
    assert named_paths(10) == [*(str(tmp_path / name) for name in names), "/elsewhere"]
    assert named_paths(11) == []


def advised(cause: Cause, source: LoaderSource | None, **changes: Any) -> list[Advice]:
    work = {WorkerTask.DECODE: 0.7, WorkerTask.READ: 0.3}
    shots = training(
        4,
        **{
            "idle": None,
            "stacks": stacks({Frame.SYNC: 1.0}, workers=work),
            "source": source,
            "image_root": "/images",
            **changes,
        },
    )
    verdict = Verdict(Bound.INPUT, cause, StallBounds(0.4, 0.5, Tier.STACKS, host_wait=True), Severity.SEVERE)
    return list(advise(Situation(Training(shots), Training(shots), verdict)))


BUSY = {"processes": (MAIN, worker(1, 0.95), worker(2, 0.95))}
TAKEN = {"system": replace(SYSTEM, idle_cores=0.1, other_cores=6.0)}


@pytest.mark.parametrize(
    ("cause", "size", "changes", "names"),
    [
        (Cause.CPU, 400_000, BUSY, ["pack_resize", "fastloader"]),
        (Cause.WORKERS, 400_000, BUSY, ["pack_resize", "fastloader"]),
        (Cause.TAKEN, 400_000, {**BUSY, **TAKEN}, ["other_programs", "pack_resize", "fastloader"]),
        (Cause.STORAGE, 400_000, {}, ["pack_resize", "fastloader"]),
        (Cause.STORAGE, 30_000, {}, ["pack", "fastloader"]),
        (Cause.CPU, 30_000, BUSY, ["fastloader"]),
    ],
)
def test_packing_comes_before_the_loader_that_reads_it(
    cause: Cause, size: int, changes: dict[str, Any], names: list[str]
) -> None:
    advice = advised(cause, OWN, file_bytes=size, **changes)
    assert [one.name for one in advice if one.name != "num_workers"] == names
    packed = any(one.change.startswith("iofast pack /images train.lmdb") for one in advice)
    read = next(one.change for one in advice if one.name == "fastloader")
    assert read.splitlines() == [
        "from iofast import FastDataset, FastLoader, transforms as T",
        f'train_set = FastDataset("{"train.lmdb" if packed else "/images"}")',
        "train_loader = FastLoader(train_set, args.batch, shuffle=True,",
        "    transform=T.train(192), dtype=torch.float32)",
        "# or, without editing, where Pillow opens JPEGs: iofast run -- python train.py",
    ]


def test_a_hostile_folder_adds_no_line_to_paste() -> None:
    (advice, _) = advised(Cause.CPU, OWN, **BUSY, file_bytes=400_000, image_root="/x\nrm -r .")
    assert advice.change == r"iofast pack '/x\nrm -r .' train.lmdb --resize 256"
