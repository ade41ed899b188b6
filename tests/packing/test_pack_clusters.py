"""Packing on Ray and SLURM: the bytes of one run, errors as without them, resumed with the same command."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from container_sets import Quiet
from object_store import free_port
from packing_runs import digests, repeated_images
from PIL import Image
from places import ROOT
from ray_here import own_ray_folders, running_ray

from iofast import open_reader, pack
from iofast.errors import ContainerError, ErrorBudgetError, SourceError, TargetError
from iofast.packing import PackOptions, on_ray, pack_part
from iofast.packing.pool import WorkerPool
from iofast.packing.run import run

OPTIONS: dict[str, Any] = {"resize": 12, "max_errors": 10}
CLIENT = """
import socket, sys, time
from ray.cluster_utils import Cluster
from iofast import pack
from iofast.errors import WorkerError

source, target, port = sys.argv[1:]
node = {"num_cpus": 1, "include_dashboard": False, "ray_client_server_port": int(port)}
cluster = Cluster(initialize_head=True, head_node_args=node)
try:
    for _ in range(300):
        with socket.socket() as client:
            if not client.connect_ex(("127.0.0.1", int(port))):
                break
        time.sleep(0.1)
    for _ in range(3):  # one time in six, Ray's own server does not fork well beside its threads of gRPC
        try:
            pack(source, target, on=f"ray://127.0.0.1:{port}", resize=12, max_errors=10, shard_records=7)
        except WorkerError as error:
            assert "Starting Ray client server failed" in str(error), error
        else:
            break
    else:
        raise SystemExit("Ray's client server did not start")
finally:
    cluster.shutdown()
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 60 pictures, some of them equal, and two damaged files."""
    return repeated_images(tmp_path_factory.mktemp("on-ray") / "images", 60, "ab", (14, 15))


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    module = pytest.importorskip("ray")
    with running_ray():
        yield module


def both(tmp_path: Path, name: str) -> tuple[Path, Path]:
    """The same target in two folders: for one run, and for a run on Ray."""
    targets = tmp_path / "one" / name, tmp_path / "ray" / name
    for target in targets:
        target.parent.mkdir()
    return targets


def options_of(name: str, **options: Any) -> dict[str, Any]:
    return {**OPTIONS, **({} if name.endswith(".lmdb") else {"shard_records": 7}), **options}


@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        (".tar", {}),
        (".tar", {"split": {"val": 0.2}, "shuffle": 1, "ray_cpus": 2}),
        (".tfrecord", {}),
        (".lmdb", {"notes": {"a": 1}}),
    ],
)
def test_same_bytes_as_one_run(ray: Any, images: Path, tmp_path: Path, suffix: str, options: dict[str, Any]) -> None:
    one, other = both(tmp_path, f"train{suffix}")
    given = options_of(one.name, **options)
    whole = pack(images, one, **{name: value for name, value in given.items() if name != "ray_cpus"})
    report = pack(images, other, on="ray", **given)
    assert digests(other.parent) == digests(one.parent)
    assert [path.name for path in other.parent.iterdir() if path.is_dir()] == []
    assert (report.packed, report.failed) == (whole.packed, 2)
    assert (report.bytes_in, report.bytes_out, report.errors) == (whole.bytes_in, whole.bytes_out, whole.errors)
    assert (report.workers, report.resumed) == (2, 0)


def test_relative_paths_and_patterns(ray: Any, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks have another working directory; its name may have characters that mean something in patterns."""
    folder = tmp_path / "a[b] *"
    folder.mkdir()
    monkeypatch.chdir(folder)
    pack(images, "from.tar", **options_of("t.tar"))
    foreign = {"names": {"image": "jpg"}}
    for name, more in (("one", {}), ("ray", {"on": "ray"})):
        pack("from-00000[0-2].tar", f"../{name}/t.tar", foreign=foreign, **options_of("t.tar", resize=8), **more)
    assert digests(tmp_path / "one") == digests(tmp_path / "ray")


def test_goes_on_after_the_driver_was_stopped_and_with_parts_of_other_runs(
    ray: Any, images: Path, tmp_path: Path
) -> None:
    one, other = both(tmp_path, "t.tar")
    options = options_of("t.tar", on="ray")
    pack(images, one, **options_of("t.tar"))
    with pytest.raises(KeyboardInterrupt, match="interrupted; the same command goes on from there"):
        run(images, other, PackOptions(**options), Quiet(2, KeyboardInterrupt()), WorkerPool(1, idle=True))
    report = pack(images, other, **options)
    assert report.resumed >= 14
    assert report.images_per_second < 60 / report.seconds
    assert digests(other.parent) == digests(one.parent)
    for number in (1, 2, 3):
        pack_part(images, other, number, 3, **options_of("t.tar", overwrite=True))
    assert pack(images, other, **options, overwrite=True).resumed == 60
    assert digests(other.parent) == digests(one.parent)


def test_failures_of_all_parts_count_together(ray: Any, images: Path, tmp_path: Path) -> None:
    """The damaged images are in different parts, each of which stays within the budget."""
    target = tmp_path / "t.tar"
    options = options_of("t.tar", on="ray", shuffle=1)
    with pytest.raises(
        ErrorBudgetError, match=r"2 of 60 images failed: expected at most 1, .*max_errors=, and"
    ) as info:
        pack(images, target, **{**options, "max_errors": 1})
    assert "\n" not in str(info.value)
    assert "Traceback" not in str(info.value)
    assert len((tmp_path / "t.tar.errors.jsonl").read_text().splitlines()) == 2
    assert pack(images, target, **options).failed == 2


def test_an_error_in_a_task(ray: Any, images: Path, tmp_path: Path) -> None:
    """The same class and line as without Ray; other tasks are cancelled."""
    pack(images, tmp_path / "from.tar", **options_of("t.tar"))
    target = tmp_path / "to.tar"
    options = options_of("t.tar", resize=8)
    pack_part(tmp_path / "from.tar", target, 1, 9, **options)  # makes the plan
    for shard in tmp_path.glob("from-*.tar"):
        shard.unlink()
    with pytest.raises((SourceError, ContainerError), match="from") as info:
        pack(tmp_path / "from.tar", target, on="ray", **options)
    assert "\n" not in str(info.value)


def test_a_late_task_begins_no_new_run(images: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="finished or removed meanwhile"):
        on_ray.pack_in_task(run, [str(images)], str(tmp_path / "t.tar"), PackOptions(part="1/2"), 1)
    assert not [*tmp_path.iterdir()]


def test_without_ray(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    ended = CommandLine(capsys)("pack", images, tmp_path / "t.tar", "--on", "ray")
    ended.fails(2, "--on ray needs Ray", "pip install 'iofast[ray]'")
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_the_command_starts_ray_and_ends_it(images: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    one, other = both(tmp_path, "t.tar")
    pack(images, one, **options_of("t.tar"))
    words = ["--resize", "12", "--max-errors", "10", "--shard-records", "7", "--on", "ray", "--ray-cpus", "1"]
    with own_ray_folders():
        command = [sys.executable, "-m", "iofast", "pack", str(images), str(other), *words]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert (ended.returncode, ended.stderr) == (3, "")
        assert "packed 58 images" in ended.stdout
    assert digests(other.parent) == digests(one.parent)
    with open_reader(other) as reader:
        assert len(reader) == 58


@pytest.mark.slow
def test_through_the_client_port_of_a_cluster(images: Path, tmp_path: Path) -> None:
    """In a process of its own: one process is connected to one cluster at a time."""
    pytest.importorskip("ray")
    pytest.importorskip("grpc")
    one, other = both(tmp_path, "t.tar")
    pack(images, one, **options_of("t.tar"))
    with own_ray_folders():
        program = [sys.executable, "-c", CLIENT, str(images), str(other), str(free_port())]
        ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert digests(other.parent) == digests(one.parent)


SCRIPT = ROOT / "examples" / "pack_slurm.sh"
SHAPE = ("--resize", "64", "--shard-records", "20")


def make_images(root: Path, count: int, size: tuple[int, int]) -> Path:
    root.mkdir()
    for number in range(count):
        Image.effect_noise(size, number + 1).convert("RGB").save(root / f"{number:04d}.jpg")
    return root


def packed_at_once(images: Path, folder: Path) -> dict[str, str]:
    """The files of a run without parts."""
    folder.mkdir()
    pack(images, folder / "t.tar", resize=64, shard_records=20)
    return digests(folder)


@pytest.fixture
def command_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"])))


def test_the_script_in_the_environment_of_an_array(command_on_path: None, tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 80, (20, 16))
    target = tmp_path / "t.tar"
    array = {"SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "2", "SLURM_ARRAY_TASK_COUNT": "2"}
    for task in "21":
        environment = {**os.environ, **array, "SLURM_ARRAY_TASK_ID": task}
        subprocess.run(["bash", SCRIPT, images, target, *SHAPE], env=environment, check=True)
    assert digests(tmp_path, "t") == packed_at_once(images, tmp_path / "one")
