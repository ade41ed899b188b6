"""Folders that other users may write to: their files are not trusted, and no file of the user is lost."""

import json
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from iofast import open_reader, open_writer, owned, pack
from iofast.cli import main
from iofast.containers.publish import Target
from iofast.errors import ContainerError, TargetError
from iofast.monitor.render.printed import PageReport
from iofast.owned import cache_folder

Give = Callable[[Path], None]
NAMES = ("out.lmdb", "out.tar", "out.tfrecord")


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Makes a file, folder or link another user's, as this process sees it."""

    def give_away(path: Path) -> None:
        given = os.lstat(path)

        def showing(real: Callable[..., os.stat_result], *arguments: Any, **more: Any) -> os.stat_result:
            found = real(*arguments, **more)
            same = (found.st_ino, found.st_dev) == (given.st_ino, given.st_dev)
            return os.stat_result((*found[:4], 12345, *found[5:])) if same else found

        for name in ("stat", "lstat", "fstat"):
            monkeypatch.setattr(os, name, partial(showing, getattr(os, name)))

    return give_away


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make(tmp_path / "images", 4)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder with a file of the user's."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "thesis.txt").write_text("precious")
    return tmp_path / "shared"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "iofast"


def make(folder: Path, count: int, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    (folder / "a").mkdir(parents=True)
    for number in range(count):
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).save(folder / "a" / f"{number}.png")
    return folder


def marker(**members: object) -> str:
    return json.dumps({"files": [], "replaced": [], **members})


def partial_folder(path: Path, text: str) -> Path:
    """`<path>.partial/` of a run that was interrupted during publishing."""
    folder = path.with_name(path.name + ".partial")
    folder.mkdir(0o700)
    (folder / "lock").touch()
    (folder / "publishing").touch(0o600)
    (folder / "publishing").write_text(text)
    return folder


def writes(images: Path, path: Path) -> list[Callable[[], object]]:
    """All calls that make a container."""

    def by_hand() -> None:
        with open_writer(path, overwrite=True) as writer:
            writer.write({"txt": "x"})

    return [
        lambda: pack(images, path, workers=1),
        lambda: pack(images, path, workers=1, overwrite=True),
        lambda: pack(images, path, workers=1, dry_run=True),
        lambda: pack(images, path, workers=1, format="keep", check="end"),
        by_hand,
    ]


class TestPartialFolder:
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("mode", [0o700, 0o777])
    def test_of_another_user(self, images: Path, shared: Path, give: Give, name: str, mode: int) -> None:
        folder = partial_folder(shared / name, marker(replaced=["thesis.txt"]))
        folder.chmod(mode)
        give(folder)
        for write in writes(images, shared / name):
            with pytest.raises(TargetError, match=rf"{name}\.partial may be another user's work: .*user 12345"):
                write()
        assert {path.name for path in shared.iterdir()} == {"thesis.txt", f"{name}.partial"}

    @pytest.mark.parametrize("mode", [0o770, 0o707])
    def test_that_others_may_write_to(self, images: Path, shared: Path, mode: int) -> None:
        partial_folder(shared / "out.tar", marker(replaced=["thesis.txt"])).chmod(mode)
        with pytest.raises(TargetError, match=f"another user's work: .*mode {mode:04o}"):
            pack(images, shared / "out.tar", workers=1)
        assert (shared / "thesis.txt").exists()

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("marked", [{"files": [["x", "thesis.txt"]]}, {"replaced": ["thesis.txt"]}])
    def test_names_no_file_but_its_own(self, images: Path, shared: Path, name: str, marked: dict[str, Any]) -> None:
        folder = partial_folder(shared / name, marker(**marked))
        (folder / "x").write_text("written over")
        with pytest.raises(TargetError, match=r"names 'thesis\.txt', which cannot be a file of out"):
            pack(images, shared / name, workers=1, format="keep", check="end")
        assert (shared / "thesis.txt").read_text() == "precious"

    def test_that_iofast_did_not_make(self, images: Path, shared: Path) -> None:
        """A folder of the user with this name."""
        (shared / "out.lmdb.partial").mkdir(0o700)
        (shared / "out.lmdb.partial" / "letters").mkdir()
        with pytest.raises(TargetError, match="has 'letters' but no 'lock', so iofast did not make it"):
            pack(images, shared / "out.lmdb", workers=1)
        assert (shared / "out.lmdb.partial" / "letters").is_dir()

    def test_a_later_run_keeps_its_work(self, shared: Path) -> None:
        target, other = Target(shared / "out.lmdb"), Target(shared / "out.lmdb")
        target.acquire()
        target.discard()
        with other:
            (other.partial / other.path.name).touch()
            target.discard()  # again, as after a second error
            assert (other.partial / other.path.name).exists()

    def test_is_private_but_published_files_are_not(self, images: Path, shared: Path) -> None:
        before = os.umask(0o002)
        try:
            with Target(shared / "out.lmdb") as target:
                assert stat.S_IMODE(target.partial.stat().st_mode) == 0o700
                target.discard()
            pack(images, shared / "out.lmdb", workers=1)
            pack(images, shared / "out.tar", workers=1)
        finally:
            os.umask(before)
        assert {stat.S_IMODE(path.stat().st_mode) for path in shared.glob("out*")} == {0o664}

    def test_owner_chosen_by_the_server(self, images: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """On NFS, files that root makes belong to nobody."""
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        with Target(shared / "out.lmdb") as target:
            (target.partial / "x").touch()
        with Target(shared / "out.lmdb") as target:
            assert (target.partial / "x").exists()
        pack(images, shared / "out.lmdb", workers=1)


class TestBesideTheTarget:
    @pytest.mark.parametrize("name", NAMES[1:])
    def test_a_manifest_that_names_other_files(self, images: Path, shared: Path, name: str) -> None:
        from iofast.containers.manifest import seal

        pack(images, shared / name, workers=1)
        file = shared / f"{name}.manifest"
        members = json.loads(file.read_bytes())
        strange = {"name": "thesis.txt", "count": 0, "size": 8}
        del members["crc32c"]
        file.write_bytes(seal({**members, "shards": [*members["shards"], strange]}))
        pack(images, shared / name, workers=1, overwrite=True)
        assert (shared / "thesis.txt").read_text() == "precious"
        with open_reader(shared / name) as reader:
            assert len(reader) == 4


class TestCache:
    def test_folder_of_another_user_or_that_others_may_write_to(self, cache: Path, give: Give) -> None:
        cache.mkdir(parents=True)
        cache.chmod(0o770)
        assert cache_folder() is None
        cache.chmod(0o700)
        assert cache_folder() == cache
        give(cache)
        assert cache_folder() is None

    def test_folder_that_is_a_link_to_the_users_own(self, cache: Path, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir(0o700)
        cache.parent.mkdir()
        cache.symlink_to(tmp_path / "disk")
        assert cache_folder() == tmp_path / "disk"


class TestWriting:
    @pytest.mark.parametrize("kind", ["link", "file"])
    def test_nothing_is_written_through_or_over(self, images: Path, shared: Path, kind: str) -> None:
        made = shared / "sheet.png", shared / "page.html"
        endings = (".partial", ".tmp", f".{os.getpid()}.partial", f".{os.getpid()}.tmp")  # that drafts have had
        drafts = [shared / f"{dot}{path.name}{end}" for path in made for end in endings for dot in ("", ".")]
        for draft in drafts:
            draft.symlink_to(shared / "thesis.txt") if kind == "link" else draft.write_text("precious")
        assert main(["view", str(images), str(made[0]), "--quiet"]) == 0
        PageReport(str(made[1])).close([])
        assert {draft.read_text() for draft in drafts} == {"precious"}
        assert all(path.stat().st_size for path in made)
        assert len(list(shared.iterdir())) == len(drafts) + 3

    def test_a_link_in_the_place_itself_is_replaced(self, shared: Path) -> None:
        (shared / "x").symlink_to(shared / "thesis.txt")
        with owned.writing(shared / "x") as file:
            file.write(b"new")
        assert not (shared / "x").is_symlink()
        assert (shared / "thesis.txt").read_text() == "precious"

    def test_an_error_leaves_what_was_there(self, shared: Path) -> None:
        def write() -> None:
            with owned.writing(shared / "thesis.txt") as file:
                file.write(b"half")
                raise ContainerError("in the middle")

        with pytest.raises(ContainerError):
            write()
        with pytest.raises(FileNotFoundError) as caught, owned.writing(shared / "gone" / "x"):
            pass
        assert caught.value.filename == str(shared / "gone" / "x")
        assert [(path.name, path.read_text()) for path in shared.iterdir()] == [("thesis.txt", "precious")]
