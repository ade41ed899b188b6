"""Publishing: one writer at a time, no incomplete file under the final name, resuming after any interruption."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from iofast import open_reader, pack
from iofast.containers import publish
from iofast.containers.publish import Target, require_free
from iofast.errors import ContainerError, TargetError


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def marker(**members: object) -> dict[str, Any]:
    """The content of `publishing`."""
    return {"files": [], "replaced": [], **members}


def staged(target: Target, name: str = "") -> Path:
    return target.partial / (name or target.path.name)


def publish_one(target: Target) -> None:
    target.publish({target.path.name: target.path.name})


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    target = Target(tmp_path / "out.lmdb")
    yield target
    target.release()


def test_overwriting_replaces_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out.lmdb").write_bytes(b"old")
    with Target(tmp_path / "out.lmdb", overwrite=True) as target:
        staged(target).write_bytes(b"new")
        assert target.path.read_bytes() == b"old"
        monkeypatch.setattr(os, "unlink", _never_the(target.path, os.unlink))
        publish_one(target)
    assert files(tmp_path) == {"out.lmdb": b"new"}


def _never_the(path: Path, unlink: object) -> object:
    def checked(name: str | Path, **more: object) -> None:
        assert Path(name) != path, "there was a moment without the target"
        unlink(name, **more)  # type: ignore[operator]

    return checked


def test_leaving_keeps_the_work_and_discarding_does_not(target: Target, tmp_path: Path) -> None:
    with target:
        staged(target).write_bytes(b"half")
    assert staged(target).read_bytes() == b"half"
    with target:
        target.discard()
    assert files(tmp_path) == {}
    assert os.listdir(tmp_path) == []


def test_clearing_keeps_the_lock(target: Target) -> None:
    with target:
        staged(target).write_bytes(b"half")
        target.clear()
        assert os.listdir(target.partial) == ["lock"]
        with pytest.raises(TargetError, match="another run of iofast"):
            Target(target.path).acquire()


IN_THE_WAY: list[tuple[str, str, Callable[[Path], object], str]] = [  # what is there, the target, how it came there
    ("out.lmdb", "out.lmdb", lambda path: path.write_bytes(b"old"), r"out\.lmdb exists already.*give overwrite=True"),
    ("out.lmdb", "out.lmdb", lambda path: path.symlink_to("nowhere"), "exists already"),
    ("out.lmdb", "out.lmdb", Path.mkdir, "is a folder"),
    ("out.lmdb.partial", "out.lmdb", lambda path: path.write_bytes(b"x"), "is not a folder; remove it"),
    ("out.lmdb.partial", "out.lmdb", lambda path: path.symlink_to("/tmp"), "is not a folder; remove it"),
    ("file", "file/out.lmdb", Path.touch, "file is not a folder"),
    ("file", "nowhere/deeper/out.lmdb", Path.touch, "nowhere/deeper is not a folder"),
]


@pytest.mark.parametrize(("there", "name", "make", "words"), IN_THE_WAY)
def test_something_in_the_way(
    tmp_path: Path, there: str, name: str, make: Callable[[Path], object], words: str
) -> None:
    make(tmp_path / there)
    with pytest.raises(TargetError, match=words):
        Target(tmp_path / name, overwrite=(tmp_path / there).is_dir()).acquire()
    assert os.listdir(tmp_path) == [there]


@pytest.mark.parametrize("name", ["out.lmdb", "out.tar"])
def test_folder_of_the_target_is_made(tmp_path: Path, name: str) -> None:
    """`pack ./images shards/train.tar` needs no mkdir. A longer missing path is more likely a mistake."""
    (tmp_path / "images").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "images" / "a.png")
    assert pack(tmp_path / "images", tmp_path / "new" / name, workers=1, dry_run=True).images == 1
    assert not (tmp_path / "new").exists()
    assert pack(tmp_path / "images", tmp_path / "new" / name, workers=1).packed == 1
    with open_reader(tmp_path / "new" / name) as reader:
        assert len(reader) == 1


def test_a_parent_that_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(TargetError, match="is not writable"):
        Target(tmp_path / "out.lmdb").acquire()


def test_a_read_only_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(TargetError, match=r"out\.lmdb cannot be written: read-only file system"):
        Target(tmp_path / "out.lmdb").acquire()


def test_a_lock_that_is_a_symlink_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "out.lmdb.partial").mkdir(0o700)
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "out.lmdb.partial" / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(TargetError, match="cannot be written"):
        Target(tmp_path / "out.lmdb").acquire()
    assert (tmp_path / "precious").read_bytes() == b"precious"


HOLD = """
import sys
from iofast.containers.publish import Target
target = Target(sys.argv[1])
target.acquire()
(target.partial / target.path.name).write_bytes(b"of the other")
print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_is_named_and_its_death_frees_the_target(target: Target) -> None:
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(target.path)], stdin=-1, stdout=-1, text=True)
    assert other.stdin is not None
    assert other.stdout is not None
    with other, other.stdin, other.stdout:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(TargetError, match=rf"another run of iofast is writing .*out.lmdb \(process {other.pid}\)"):
            target.acquire()
        other.kill()
        other.wait(30)
    with target:
        assert staged(target).read_bytes() == b"of the other"


def test_many_runs_at_once_exclude_each_other(tmp_path: Path) -> None:
    """Each run publishes or discards 40 times, and removes the folder that the others are about to lock."""
    program = """
import os, sys
from iofast.containers.publish import Target
from iofast.errors import TargetError
done = 0
while done < 40:
    target = Target(sys.argv[1], overwrite=True)
    try:
        target.acquire()
    except TargetError:
        continue
    alone = target.partial / "alone"
    os.close(os.open(alone, os.O_CREAT | os.O_EXCL))  # fails if two are in
    (target.partial / "out").write_bytes(b"whole")
    target.discard() if done % 3 else target.publish({'out': 'out'})
    done += 1
"""
    runs = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "out")], stderr=-1) for _ in range(4)]
    for run in runs:
        _, complaint = run.communicate(timeout=60)
        assert (run.returncode, complaint) == (0, b"")
    assert files(tmp_path) == {"out": b"whole"}


def test_published_by_another_between_check_and_lock(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    take = target._take

    def publish_first(lock: int) -> None:
        target.path.write_bytes(b"of the other")
        take(lock)

    monkeypatch.setattr(target, "_take", publish_first)
    with pytest.raises(TargetError, match="exists already"):
        target.acquire()
    assert not target.partial.exists()


class KilledError(BaseException):
    """In place of a kill: no code catches it."""


class SetTarget(Target):
    """A target of several files."""

    def owns(self, name: str) -> bool:
        return name in ("set", "old-0", "new-0", "new-1")

    def _replaced(self) -> list[str]:
        return ["set", "old-0"]


CALLS = 22  # system calls of `publish` below


@pytest.mark.parametrize("failure", [KilledError(), OSError(errno.EIO, "Input/output error")], ids=["killed", "EIO"])
@pytest.mark.parametrize("step", range(CALLS + 1))
def test_a_set_is_completed_from_any_point(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: int,
    failure: BaseException,
) -> None:
    """A set of three files replaces one of two. The run is killed before its n-th system call, or that call fails."""
    old = {"old-0": b"o", "set": b"old manifest"}
    new = {"new-0": b"a", "new-1": b"b", "set": b"new manifest"}
    for name, data in old.items():
        (tmp_path / name).write_bytes(data)
    target = SetTarget(tmp_path / "set", overwrite=True)
    target.acquire()
    for name, data in new.items():
        staged(target, name).write_bytes(data)
    staged(target, "journal-0").write_bytes(b"a file that is not published")
    left = step

    def counted(call: object) -> object:
        def one(*arguments: object, **more: object) -> object:
            nonlocal left
            left -= 1
            if left == -1 or (left < 0 and isinstance(failure, KilledError)):
                raise failure
            return call(*arguments, **more)  # type: ignore[operator]

        return one

    with monkeypatch.context() as patch:
        for name in ("rename", "replace", "unlink", "fsync", "open", "rmdir"):
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            target.publish({name: name for name in new})
        except (KilledError, TargetError):
            killed = True
        else:
            killed = False
    target.release()

    found = files(tmp_path)
    if isinstance(failure, KilledError):
        assert killed == (step < CALLS)
    else:
        assert killed != (found.items() >= new.items()), "what is published is reported so"
        assert killed or found == new or "is published, but cleaning up failed: input/output error" in caplog.text
    if found.get("set") == b"new manifest":
        assert found.items() >= new.items()  # with the manifest, all of its files are there
    elif "set" in found:
        assert found.items() >= old.items()
    again = SetTarget(tmp_path / "set", overwrite=True)
    if again.partial.exists():
        again.acquire()
        if again.interrupted:
            again.complete()
        elif found.get("set") == b"new manifest":
            assert set(os.listdir(again.partial)) <= {"lock"}, "what is left of a finished run is readable"
            again.discard()
        else:
            again.publish({name: name for name in new})
    assert files(tmp_path) == new
    assert not again.partial.exists()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        json.dumps(marker(replaced=3)).encode(),
        json.dumps(marker(files=[["a", 1]])).encode(),
        json.dumps(marker(files=["out.lmdb"])).encode(),
        b"\xff",
    ],
)
def test_a_damaged_marker(target: Target, text: bytes) -> None:
    with target:
        target.note("publishing", {})
        (target.partial / "publishing").write_bytes(text)
        with pytest.raises((ContainerError, TargetError), match=r"damaged|cannot be"):
            target.complete()


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "", ".", "..", "lock", "publishing", "a\0b"])
def test_names_that_lead_elsewhere(target: Target, name: str) -> None:
    with target:
        with pytest.raises(TargetError, match="cannot be the name"):
            target.publish({name: "out.lmdb"})
        target.note("publishing", marker(replaced=[name]))
        with pytest.raises(TargetError, match="cannot be the name"):
            target.complete()


def test_what_was_not_staged_is_not_published(target: Target) -> None:
    with target:
        with pytest.raises(TargetError, match="cannot be published: no such file"):
            publish_one(target)
        target.note("publishing", marker(files=[["out.lmdb", "out.lmdb"]]))
        with pytest.raises(TargetError, match="cannot be published: no such file"):
            target.complete()


def test_clearing_does_not_follow_links(target: Target, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_bytes(b"precious")
    with target:
        (target.partial / "link").symlink_to(tmp_path / "elsewhere")
        target.discard()
    assert files(tmp_path) == {"elsewhere/precious": b"precious"}


def test_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_free(tmp_path / "not" / "yet" / "out.lmdb", 1)
    with pytest.raises(TargetError, match=r"too little disk space for .*out\.lmdb: 1000000000\.00 GB are needed"):
        require_free(tmp_path / "out.lmdb", 10**18)
    monkeypatch.setattr(publish.shutil, "disk_usage", lambda _: publish.shutil._ntuple_diskusage(10, 3, 7))
    require_free(tmp_path, 7)
    with pytest.raises(TargetError):
        require_free(tmp_path, 8)
