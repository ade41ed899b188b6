"""Each rule of advice: when it speaks, with which change and gain, and the names of the program's own source."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from monitor_snapshots import DEVICE, LATE, LOADER, MAIN, SYSTEM, stacks, thread, training, worker, workers
from proc_folder import ProcFolder

from iofast.meter import TrafficStats
from iofast.monitor.advice import RULES, advise
from iofast.monitor.findings import Advice, Bound, Cause, Evidence, Phase, Severity, StallBounds, Verdict
from iofast.monitor.probe.data_folders import parsed, program_of
from iofast.monitor.snapshot import Frame, LoaderSource, Snapshot, Tier, WaitSite, WaitSource, WorkerTask
from iofast.monitor.training import Training
from iofast.monitor.verdict import classify
from iofast.monitor.what_if import MOST_GAIN, Situation, gain

Changes = dict[str, Any]


def verdict(bound: Bound, cause: Cause | None = None, low: float = 0.4, high: float = 0.5, **changes: Any) -> Verdict:
    made = Verdict(bound, cause, StallBounds(low, high, Tier.STACKS), Severity.NONE, phases={Phase.TRAINING: 40.0})
    return replace(made, **changes)


def given_(judged: Verdict, /, later: Changes | None = None, **changes: Any) -> dict[str, Advice]:
    """By name, after four seconds of which the last two have the changes of `later`, too."""
    shots = training(4, **{"doing": LATE, "idle": 0.6, **changes})
    shots[2:] = [replace(shot, **(later or {})) for shot in shots[2:]]
    return {advice.name: advice for advice in advised(shots, judged)}


def advised(shots: list[Snapshot], judged: Verdict) -> tuple[Advice, ...]:
    return advise(Situation(Training(shots), Training(shots), judged))


def seen(
    main: dict[Frame, float] | None = None, /, work: dict[WorkerTask, float] | None = None, **changes: Any
) -> Changes:
    return {"stacks": stacks(main or {Frame.SYNC: 1.0}, workers=work, **changes)}


def device(**changes: Any) -> Changes:
    return {"devices": (replace(DEVICE, **changes),)}


def system(**changes: Any) -> Changes:
    return {"system": replace(SYSTEM, **changes)}


WORKERS, CPU, TAKEN = (verdict(Bound.INPUT, cause) for cause in (Cause.WORKERS, Cause.CPU, Cause.TAKEN))
SINGLE, STORAGE = verdict(Bound.INPUT, Cause.SINGLE), verdict(Bound.INPUT, Cause.STORAGE)
CACHE = verdict(Bound.INPUT, Cause.PAGE_CACHE, evidence=(Evidence("major_faults", 40.0, ""),))
COLLATE = verdict(Bound.INPUT, Cause.COLLATE, evidence=(Evidence("collate", 0.6, ""),))
STARTS = verdict(Bound.INPUT, Cause.EPOCH_START, evidence=(Evidence("gap", 0.3, ""),))
PIN = verdict(Bound.INPUT, Cause.PIN, evidence=(Evidence("pin_cpu", 0.9, ""),))
REMOTE = verdict(Bound.INPUT, Cause.REMOTE)
SKEW = verdict(Bound.INPUT, Cause.RANK_SKEW, evidence=(Evidence("rank_gap", 0.4, "this rank waits 50%"),))
FED = WaitSite("/u/train.py", 41, "batches", "queue.get", WaitSource.THREADS, True, 0.6)
STORES = verdict(Bound.INPUT, Cause.STORAGE, waits=FED)
FEEDS = replace(STORES, cause=Cause.FEEDER)
COMPUTE = verdict(Bound.COMPUTE, low=0.0, high=0.02)
LAUNCH = verdict(Bound.LAUNCH, low=0.0, high=0.1)
SYNC, TRANSFER = verdict(Bound.SYNC, low=0.0, high=0.1), verdict(Bound.TRANSFER, low=0.0, high=0.1)
SLOWED = Evidence("clocks", 0.9, "the device's clock was held back 90% of the time (power)")
THROTTLED = verdict(Bound.THROTTLED, low=0.0, high=0.02, evidence=(SLOWED,))
TALK = verdict(Bound.COMMUNICATION, low=0.0, high=0.02, evidence=(Evidence("communication", 0.3, ""),))

BUSY, ASLEEP = {"processes": workers(0.95)}, {"processes": workers(0.1)}
ALONE = {"processes": (MAIN,)}
DECODES = seen(work={WorkerTask.DECODE: 0.7, WorkerTask.AUGMENT: 0.3})
BIG = {"file_bytes": 400_000}
SHARED = system(idle_cores=0.1, other_cores=4.0, busiest="pid 7, cc1, and others")
RESTING = device(tensor_active=0.0, sm_active=0.8)
COPIES = seen({Frame.TRANSFER: 0.4, Frame.FORWARD: 0.6})
SITE = WaitSite("train.py", 12, "main", ".item()", WaitSource.DEVICE, False, 0.5)
ANEW = {**BUSY, "later": {"processes": (MAIN, worker(8, 0.95), worker(9, 0.95))}}
PINNED, FAST = {"threads": (thread("pt_data_pin", 0.1),)}, {"loaders": (replace(LOADER, kind="FastLoader"),)}
ASKED = TrafficStats(gets=1000, bytes=30_000_000, read=40_000_000)
STORED = replace(LOADER, kind="FastLoader", traffic=ASKED)
COLD, LATER = {"loaders": (STORED,)}, {"loaders": (replace(STORED, epoch=1),)}
THREADS = {"loaders": (replace(LOADER, kind="FastLoader", stages={"decode": 1.9}),), **ALONE}

SMALL = {"file_bytes": 30_000}
STARVED = seen(work={WorkerTask.STARVED: 0.5, WorkerTask.READ: 0.5})
SYNCS = seen({Frame.SYNC: 0.5, Frame.FORWARD: 0.5}, waits=(SITE,))

# When each rule speaks, and a part of the change that it advises.
SPEAKS: dict[str, tuple[Verdict, Changes, str]] = {
    "num_workers": (WORKERS, BUSY, "num_workers=5"),
    "first_workers": (SINGLE, ALONE, "num_workers=2, persistent_workers=True"),
    "pack_resize": (
        *(CPU, {**BUSY, **DECODES, **BIG, "image_root": "/data/my set"}),
        "iofast pack '/data/my set' train.lmdb --resize 256",
    ),
    # which folder has all images is not known
    "pack": (STORAGE, {**ASLEEP, **SMALL, "data_folder": "/photos/n03"}, "iofast pack FOLDER train.lmdb"),
    "fastloader": (CPU, {**BUSY, **DECODES}, "FastLoader("),
    "prefetch_factor": (STORAGE, {**ASLEEP, **STARVED}, "prefetch_factor=8"),
    "persistent_workers": (STARTS, ANEW, "persistent_workers=True"),
    "page_cache": (CACHE, ASLEEP, "find train.lmdb -type f -exec cat {} + > /dev/null"),
    "stage": (REMOTE, COLD, "iofast stage URL"),
    "uint8": (COLLATE, BUSY, "uint8"),
    "slow_rank": (SKEW, BUSY, "another rank's"),
    "pin_memory": (TRANSFER, COPIES, "pin_memory=True"),
    "mixed_precision": (COMPUTE, RESTING, "torch.bfloat16"),
    "reading_ahead": (STORES, ALONE, "ThreadPoolExecutor"),
    "sender": (FEEDS, ALONE, "that program"),
    "sync": (SYNC, SYNCS, "train.py:12"),
    "compile": (LAUNCH, seen({Frame.FORWARD: 1.0}), 'mode="reduce-overhead"'),
    "cpu_quota": (CPU, {**BUSY, **system(throttled_s=0.4)}, "docker update --cpus"),
    "other_programs": (TAKEN, SHARED, "taskset -acp 0 7 "),
    "clocks": (THROTTLED, {}, "TEMPERATURE"),
}
SILENT: list[tuple[str, Verdict, Changes]] = [
    ("num_workers", WORKERS, {**BUSY, **system(idle_cores=0.1)}),
    ("num_workers", CPU, BUSY),
    ("num_workers", CPU, THREADS),
    ("num_workers", WORKERS, {**ALONE, "loaders": (LOADER,)}),  # another loader's threads
    ("first_workers", SINGLE, {**ALONE, **system(cores=1.0)}),
    ("first_workers", SINGLE, THREADS),
    ("pack_resize", CPU, {**BUSY, **DECODES, "file_bytes": 25_000}),
    ("pack_resize", CPU, {**BUSY, **BIG, **seen(work={WorkerTask.AUGMENT: 0.9, WorkerTask.DECODE: 0.1})}),
    ("pack_resize", CPU, BUSY),
    ("pack_resize", CPU, {**BUSY, **DECODES, **FAST}),
    ("pack", STORAGE, {**ASLEEP, **BIG}),
    ("pack", STORAGE, ASLEEP),
    ("fastloader", CPU, {**BUSY, **FAST}),
    ("fastloader", STORAGE, ASLEEP),
    ("fastloader", STORAGE, {**ASLEEP, **FAST, **SMALL}),
    ("fastloader", CPU, {**BUSY, **seen(work={WorkerTask.OTHER: 1.0})}),
    ("prefetch_factor", STORAGE, {**BUSY, **STARVED}),
    ("prefetch_factor", STORAGE, {**ASLEEP, **seen(work={WorkerTask.STARVED: 0.1, WorkerTask.READ: 0.9})}),
    ("prefetch_factor", STORAGE, ASLEEP),
    ("persistent_workers", STARTS, {**ANEW, **FAST}),
    ("persistent_workers", STARTS, ALONE),
    ("persistent_workers", STARTS, BUSY),
    ("page_cache", STORAGE, ASLEEP),
    ("stage", REMOTE, FAST),
    ("uint8", TRANSFER, seen({Frame.TRANSFER: 0.05, Frame.FORWARD: 0.95})),
    ("slow_rank", TALK, {}),
    ("pin_memory", TRANSFER, {}),
    ("pin_memory", TRANSFER, {**COPIES, **FAST}),
    ("mixed_precision", COMPUTE, device(tensor_active=0.4, sm_active=0.8)),
    ("mixed_precision", COMPUTE, device(tensor_active=0.0, sm_active=0.2)),
    ("mixed_precision", COMPUTE, device(sm_active=0.8)),
    ("reading_ahead", STORAGE, ALONE),
    ("reading_ahead", STORES, BUSY),
    ("reading_ahead", replace(STORES, waits=replace(FED, source=WaitSource.SOCKET)), ALONE),
    ("reading_ahead", replace(STORES, waits=replace(FED, loader=False)), ALONE),
    ("sender", replace(FEEDS, waits=None), ALONE),
    ("sync", SYNC, seen({Frame.SYNC: 0.5})),
    ("compile", LAUNCH, seen({Frame.FORWARD: 1.0}, compiled=True)),
    ("cpu_quota", CPU, BUSY),
    ("cpu_quota", CPU, {**BUSY, **system(throttled_s=None)}),
    ("other_programs", CPU, SHARED),
    ("clocks", replace(THROTTLED, evidence=()), {}),
]


@pytest.mark.parametrize("name", SPEAKS)
def test_when_it_speaks(name: str) -> None:
    judged, changes, change = SPEAKS[name]
    advice = given_(judged, **changes).get(name)
    assert advice is not None
    assert change in advice.change
    assert advice.changes_accuracy == (name in ("mixed_precision", "pack_resize"))
    assert advice.text.endswith(".")
    assert advice.trigger
    assert advice.value is not None, "the figure that triggered it"
    assert any(letter.isdigit() for letter in advice.text)
    assert advice.gain is None or 1.0 <= advice.gain <= MOST_GAIN
    if judged.bound is Bound.INPUT and advice.gain is not None:
        assert advice.gain <= gain(0.4) + 1e-9, "more than the proved stall"


def test_words_fit_the_case() -> None:
    """The same rule on threads and processes, in the first epoch and later, with a pin thread and without."""
    assert given_(WORKERS, **THREADS)["num_workers"].change == "FastLoader(..., num_workers=5)"
    idle = {**ALONE, "loaders": (replace(LOADER, kind="FastLoader", stages={"decode": 1.0}),)}
    advice = given_(WORKERS, **idle)["num_workers"]  # the stages of its threads are half of their time
    assert advice.change == "FastLoader(..., num_workers=6)"
    assert advice.text == "The 2 threads are late and 4.0 cores are idle."
    assert given_(REMOTE, **LATER)["stage"].change.startswith("export IOFAST_CACHE_SIZE")
    assert given_(TRANSFER, **COPIES, **PINNED)["pin_memory"].change == "images = images.to(device, non_blocking=True)"
    assert given_(PIN, **BUSY)["uint8"].trigger == "pin_cpu"
    assert given_(TRANSFER, **COPIES)["uint8"].gain == pytest.approx(gain(0.3))
    short = given_(CACHE, **ASLEEP, **system(memory_available=1 << 20), image_root="/data")["page_cache"].change
    assert short == "iofast pack /data train.lmdb --resize 256"
    late = replace(TALK, evidence=(Evidence("rank_gap", 0.5, "rank 1 waits 50%"),))
    assert given_(late)["slow_rank"].change.startswith("iofast monitor --pid")


@pytest.mark.parametrize(("name", "judged", "changes"), SILENT)
def test_when_it_is_silent(name: str, judged: Verdict, changes: Changes) -> None:
    assert name not in given_(judged, **changes)


def test_every_rule_speaks_for_its_own_verdicts() -> None:
    for name, (judged, changes, _) in SPEAKS.items():
        assert name not in given_(COMPUTE if judged.bound is Bound.INPUT else WORKERS, **changes)
    spoken = {advice for judged, changes, _ in SPEAKS.values() for advice in given_(judged, **changes)}
    assert spoken == set(SPEAKS)
    assert len(RULES) == len(SPEAKS) <= 20


def test_the_largest_gain_comes_first() -> None:
    changes: Changes = {**BUSY, **DECODES, "file_bytes": 400_000, "doing": LATE, "idle": 0.6}
    gains = [advice.gain or 0.0 for advice in advised(training(4, **changes), WORKERS)]
    assert len(gains) >= 3
    assert gains == sorted(gains, reverse=True)


def test_a_wait_bounds_no_gain_where_training_gets_the_loaders_processors() -> None:
    """Both compute on the same two cores: taking the loader's work away is worth more than the wait."""
    alone = replace(CPU, stall=StallBounds(0.4, 0.5, Tier.STACKS, host_wait=True))
    changes: Changes = {**BUSY, **DECODES, "file_bytes": 400_000, **system(throttled_s=0.2)}
    judged = advised(training(4, **{"doing": LATE, "idle": None, **changes}), alone)
    assert [(one.name, one.gain) for one in judged[:2]] == [("pack_resize", None), ("fastloader", None)]
    assert judged[2].gain is not None
    assert "share the cores" in judged[1].text
    beside = given_(CPU, **{**BUSY, **DECODES, "file_bytes": 400_000})
    assert beside["fastloader"].gain == beside["pack_resize"].gain == pytest.approx(gain(0.4))


def test_ranks_share_the_cores() -> None:
    """Eight ranks that are told to take all four idle cores each would be told to take 32."""
    starved = verdict(Bound.INPUT, Cause.WORKERS, low=0.8, high=0.9)
    others = dict.fromkeys(range(1, 4), 0.8)
    assert "num_workers=7" in given_(starved, **BUSY)["num_workers"].change
    assert "num_workers=4" in given_(starved, **BUSY, peers=others)["num_workers"].change
    assert "1.0 cores are idle for each rank" in given_(starved, **BUSY, peers=others)["num_workers"].text
    alone = {**ALONE, "peers": others}
    assert "num_workers=2" in given_(replace(SINGLE, stall=starved.stall), **alone)["first_workers"].change


def test_commands_name_the_folder_of_the_images() -> None:
    """Where it is not certain, a word stands for it: a class's folder would lose the other classes."""
    paths, sure = {"data_folder": "/data/my train/cat"}, {"image_root": "/data/my train"}
    for root, folder, source in ((sure, "'/data/my train'", "/data/my train"), ({}, "FOLDER", "FOLDER")):
        known = {**paths, **root}
        small = given_(STORAGE, **ASLEEP, file_bytes=30_000, **known)["pack"].change
        assert small == f"iofast pack {folder} train.lmdb"
        alone = {**ALONE, **known}
        assert f'FastDataset("{source}")' in given_(SINGLE, **alone, file_bytes=30_000)["fastloader"].change
        assert 'FastDataset("train.lmdb")' in given_(SINGLE, **alone, file_bytes=400_000)["fastloader"].change
        assert f"iofast pack {folder} " in given_(CPU, **BUSY, **DECODES, **known)["pack_resize"].change
    warmed = given_(CACHE, **ASLEEP, **paths)["page_cache"].change
    assert warmed.startswith("find '/data/my train/cat' -type f")


def test_the_command_that_warms_the_page_cache_runs(tmp_path: Path) -> None:
    (tmp_path / "a class").mkdir()
    (tmp_path / "a class" / "1.jpg").write_bytes(b"x")
    command = given_(CACHE, **ASLEEP, data_folder=str(tmp_path))["page_cache"].change
    assert subprocess.run(["sh", "-c", command], capture_output=True, check=True).stderr == b""


def test_workers_of_a_training_on_the_same_cores() -> None:
    """Where it is unknown how long its step takes alone, nothing is predicted, but advice is given."""
    four = replace(SYSTEM, cores=4.0, idle_cores=2.0)
    waits = stacks({Frame.LOADER_WAIT: 0.6, Frame.FORWARD: 0.4}, workers={WorkerTask.AUGMENT: 1.0})
    busy = (MAIN, worker(1, 0.95))
    judged = classify(training(40, doing=LATE, idle=None, system=four, processes=busy, stacks=waits))
    assert (judged.cause, judged.interference, judged.what_if) == (Cause.WORKERS, None, ())
    assert "num_workers" in {advice.name for advice in judged.advice}


# --- the lines that advice writes have the names of the program's own source


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
    assert program_of(10)[0] == replace(OWN, root=str(tmp_path / "images"))
    proc.process(10, line=b"python\0-m\0train\0")
    assert program_of(10)[0] is None
    assert program_of(11)[0] is None


def test_paths_in_a_command(tmp_path: Path, proc: ProcFolder) -> None:
    """The root of a data set that only the command names, as it was typed."""
    (tmp_path / "my images").mkdir()
    line = b"python\0train.py\0--data=my images\0-o\0.\0..\0./logs\0/elsewhere\0--lr=\0"
    (proc.process(10, line=line) / "cwd").symlink_to(tmp_path)
    names = ("python", "train.py", "my images", "-o", "logs")
    assert program_of(10)[1] == [*(str(tmp_path / name) for name in names), "/elsewhere"]
    assert program_of(11)[1] == []


def advised_with(cause: Cause, source: LoaderSource | None, **changes: Any) -> list[Advice]:
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


TWO_BUSY = {"processes": (MAIN, worker(1, 0.95), worker(2, 0.95))}
FULL = {"system": replace(SYSTEM, idle_cores=0.1, other_cores=6.0)}


@pytest.mark.parametrize(
    ("cause", "size", "changes", "names"),
    [
        (Cause.CPU, 400_000, TWO_BUSY, ["pack_resize", "fastloader"]),
        (Cause.WORKERS, 400_000, TWO_BUSY, ["pack_resize", "fastloader"]),
        (Cause.TAKEN, 400_000, {**TWO_BUSY, **FULL}, ["other_programs", "pack_resize", "fastloader"]),
        (Cause.STORAGE, 400_000, {}, ["pack_resize", "fastloader"]),
        (Cause.STORAGE, 30_000, {}, ["pack", "fastloader"]),
        (Cause.CPU, 30_000, TWO_BUSY, ["fastloader"]),
    ],
)
def test_packing_comes_before_the_loader_that_reads_it(
    cause: Cause, size: int, changes: dict[str, Any], names: list[str]
) -> None:
    advice = advised_with(cause, OWN, file_bytes=size, **changes)
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
    (advice, _) = advised_with(Cause.CPU, OWN, **TWO_BUSY, file_bytes=400_000, image_root="/x\nrm -r .")
    assert advice.change == r"iofast pack '/x\nrm -r .' train.lmdb --resize 256"


def test_a_gain_is_bounded() -> None:
    assert list(map(gain, (0.0, 0.5, 1.0, 7.0, -1.0))) == pytest.approx([1.0, 2.0, MOST_GAIN, MOST_GAIN, 1.0])
