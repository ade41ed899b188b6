"""`--append`: existing records stay as they are, and a kill at any point leaves the old container or the new one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from container_sets import in_shards
from packing_runs import digests as contents
from PIL import Image

from iofast import FastDataset, open_reader, pack
from iofast.containers.publish import Target
from iofast.errors import OptionError, SourceError, TargetError

NAMES = ("out.lmdb", "out.tar", "out.tfrecord")
SHARD = 30_000


def options_of(target: Path) -> dict[str, Any]:
    return {"resize": 24, **in_shards(target, SHARD)}


def make(root: Path, names: Sequence[str], count: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    for number in range(count):
        path = root / names[number % len(names)] / f"{number:03d}.png"
        path.parent.mkdir(exist_ok=True, parents=True)
        Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((40, 30)).save(path)
    return root


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Pictures of classes b and d; then of a, b and e."""
    root = tmp_path_factory.mktemp("sources")
    return make(root / "one", ("b", "d"), 60, 1), make(root / "two", ("a", "b", "e"), 45, 2)


@pytest.mark.parametrize("name", NAMES)
class TestAppend:
    @pytest.fixture
    def target(self, sources: tuple[Path, Path], tmp_path: Path, name: str) -> Path:
        (tmp_path / "set").mkdir()
        pack(sources[0], tmp_path / "set" / name, **options_of(tmp_path / "set" / name))
        return tmp_path / "set" / name

    @pytest.fixture
    def whole(self, sources: tuple[Path, Path], target: Path, tmp_path: Path) -> dict[str, str]:
        """The files of an undisturbed append."""
        shutil.copytree(target.parent, tmp_path / "whole")
        pack(sources[1], tmp_path / "whole" / target.name, append=True, **options_of(tmp_path / "whole" / target.name))
        return contents(tmp_path / "whole")

    def test_records_follow_and_classes_keep_their_numbers(self, sources: tuple[Path, Path], target: Path) -> None:
        with open_reader(target) as reader:
            old = [(record.key, dict(record.fields)) for record in reader]
        report = pack(sources[1], target, append=True, **options_of(target))
        assert (report.images, report.packed, report.held, report.classes) == (45, 45, 60, 4)
        with open_reader(target) as reader:
            assert reader.manifest.classes == ("b", "d", "a", "e")
            assert reader.manifest.splits == {"all": ((0, 60), (60, 105))}
            new = [(record.key, dict(record.fields)) for record in reader]
        assert new[:60] == old
        assert [key for key, _ in new[60:]] == [f"{i:08d}" for i in range(60, 105)]
        assert [int(fields["cls"]) for _, fields in new[60::15]] == [2, 0, 3]
        dataset = FastDataset(target)
        assert len(dataset) == 105
        assert int(dataset[100][1]) == 3

    def test_published_shards_stay_as_they_are(self, sources: tuple[Path, Path], target: Path) -> None:
        before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in target.parent.iterdir()}
        pack(sources[1], target, append=True, **options_of(target))
        after = {path.stat().st_ino: path.read_bytes() for path in target.parent.iterdir()}
        shards = [kept for file, kept in before.items() if file.startswith("out-")]
        assert shards or target.suffix == ".lmdb"
        assert all(after[inode] == data for inode, data in shards)

    def test_twice_for_any_number_of_workers(self, sources: tuple[Path, Path], target: Path, tmp_path: Path) -> None:
        """Two appends; the bytes do not depend on the number of workers."""
        third = make(tmp_path / "three", ("f",), 20, 3)
        found = []
        for workers in (1, 3):
            copy = tmp_path / f"copy{workers}"
            shutil.copytree(target.parent, copy)
            pack(sources[1], copy / target.name, append=True, workers=workers, **options_of(copy / target.name))
            pack(third, copy / target.name, append=True, workers=workers, **options_of(copy / target.name))
            found.append(contents(copy))
        assert found[0] == found[1]
        with open_reader(tmp_path / "copy1" / target.name) as reader:
            assert reader.manifest.splits == {"all": ((0, 60), (60, 105), (105, 125))}
            assert len(list(reader)) == 125

    def test_splits_get_another_range(self, sources: tuple[Path, Path], tmp_path: Path, name: str) -> None:
        for part in ("train", "val"):
            shutil.copytree(sources[0] / "b", tmp_path / "images" / part / "b")
        target = tmp_path / name
        pack(tmp_path / "images", target, **options_of(target))
        pack(tmp_path / "images", target, append=True, **options_of(target))
        with open_reader(target) as reader:
            assert reader.manifest.splits == {"train": ((0, 30), (60, 90)), "val": ((30, 60), (90, 120))}
        assert len(FastDataset(target, split="val")) == 60
        with pytest.raises(SourceError, match="has splits: train, val; the new images have: none"):
            pack(sources[1], target, append=True, **options_of(target))

    def test_other_options_are_an_error(self, sources: tuple[Path, Path], target: Path) -> None:
        before = contents(target.parent)
        cases: list[tuple[dict[str, Any], str]] = [
            ({"resize": 32}, "resize=24, not 32"),
            ({"quality": 50}, "quality=90, not 50"),
            ({"shuffle": 1}, "shuffle=None, not 1"),
            ({"restart": "none"}, "restart=auto, not 0"),
            ({"drop_duplicates": True}, "drop_duplicates=None, not True"),
        ]
        for options, words in cases:
            with pytest.raises(OptionError, match=words):
                pack(sources[1], target, append=True, **{**options_of(target), **options})
        assert contents(target.parent) == before
        assert len(os.listdir(target.parent)) == len(before)

    def test_nothing_to_add_to(self, sources: tuple[Path, Path], tmp_path: Path, name: str) -> None:
        with pytest.raises(TargetError, match="does not exist"):
            pack(sources[1], tmp_path / name, append=True, **options_of(tmp_path / name))
        with pytest.raises(OptionError, match="give one of them"):
            pack(sources[1], tmp_path / name, append=True, overwrite=True)
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("steps", [(1, 5, 9), pytest.param(range(1, 99), marks=pytest.mark.slow)])
    def test_a_kill_at_any_step_leaves_the_old_or_the_new(
        self, sources: tuple[Path, Path], target: Path, whole: dict[str, str], steps: Sequence[int]
    ) -> None:
        """KilledRun at calls that change names: a reader finds 60 or 105 records; the same command resumes."""
        kept = target.parent.with_name("kept")
        shutil.copytree(target.parent, kept)
        seen = []
        for step in steps:
            seen.append(kill_at(step, sources[1], target, kept, whole))
            if seen[-1] is None:
                break
        assert set(seen) == {60, 105, None} or steps == (1, 5, 9)

    @pytest.mark.parametrize("call", ["unlink", "rmdir"])
    def test_a_kill_while_the_folder_goes(
        self, sources: tuple[Path, Path], target: Path, whole: dict[str, str], call: str
    ) -> None:
        """Without `appending`, but with the lock or the empty folder: nothing is appended a second time."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                os, call, _killed_at("lock" if call == "unlink" else f"{target.name}.partial", getattr(os, call))
            )
            with pytest.raises(KilledRun):
                pack(sources[1], target, append=True, **options_of(target))
        assert "appending" not in os.listdir(f"{target}.partial")
        report = pack(sources[1], target, append=True, **options_of(target))
        assert (report.packed, report.held, report.resumed) == (45, 60, 45)
        assert contents(target.parent) == whole
        assert not Path(f"{target}.partial").exists()
        pack(sources[1], target, append=True, **options_of(target))  # asked for again: nobody was killed this time
        with open_reader(target) as reader:
            assert len(reader) == 150

    def test_interrupted_and_resumed_after_another_command(
        self, sources: tuple[Path, Path], target: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Target, "_rename", stop)
            with pytest.raises(KeyboardInterrupt):
                pack(sources[1], target, append=True, **options_of(target))
        with open_reader(target) as reader:
            assert len(reader) == 60
        with pytest.raises(TargetError, match="append"):
            pack(sources[1], target, overwrite=True, **options_of(target))
        report = pack(sources[1], target, append=True, **options_of(target))
        assert (report.packed, report.resumed) == (45, 45)
        assert contents(target.parent) == whole


def kill_at(steps: int, source: Path, target: Path, kept: Path, whole: dict[str, str]) -> int | None:
    """Kill an append at a step. Return the number of records then, None if it had fewer steps."""
    shutil.rmtree(target.parent)
    shutil.copytree(kept, target.parent)
    counted, killed = _Stop(steps), False
    with pytest.MonkeyPatch.context() as patch:
        for call in ("rename", "unlink", "link", "replace", "rmdir"):
            patch.setattr(os, call, counted.before(getattr(os, call)))
        try:
            pack(source, target, append=True, workers=1, **options_of(target))
        except KilledRun:
            killed = True
    with open_reader(target) as reader:
        found = len(list(reader))
    partial = Path(f"{target}.partial")
    left = set(os.listdir(partial)) if partial.exists() else set()
    if "appending" in left or found == 60 or Path(f"{target}.appended").exists():
        pack(source, target, append=True, **options_of(target))
        assert not partial.exists()
    else:  # killed at the last steps
        assert left <= {"lock"}
    assert contents(target.parent) == whole
    return found if killed else None


def _killed_at(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def checked(path: Any, *more: Any, **keywords: Any) -> Any:
        if os.path.basename(os.fspath(path)) == name:
            raise KilledRun
        return call(path, *more, **keywords)

    return checked


class KilledRun(BaseException):
    pass


class _Stop:
    """Counts calls; from number `passed` on, each one kills the run."""

    def __init__(self, passed: int) -> None:
        self.left = passed

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **keywords: Any) -> Any:
            if ".partial" in os.fspath(args[0]) or "set" in os.fspath(args[0]):
                self.left -= 1
            if self.left < 0:
                raise KilledRun
            return call(*args, **keywords)

        return counted


def test_a_container_that_pack_did_not_make(sources: tuple[Path, Path], tmp_path: Path) -> None:
    from iofast import open_writer

    with open_writer(tmp_path / "x.tar", classes=["b"]) as writer:
        writer.write({"txt": "words", "cls": 0})
    with pytest.raises(OptionError, match="not made by iofast pack"):
        pack(sources[1], tmp_path / "x.tar", append=True)


def test_classes_or_none(sources: tuple[Path, Path], tmp_path: Path) -> None:
    flat = make(tmp_path / "flat", (".",), 5, 4)
    pack(flat, tmp_path / "x.tar", **options_of(tmp_path / "x.tar"))
    with pytest.raises(SourceError, match="has no classes, the new images have 3"):
        pack(sources[1], tmp_path / "x.tar", append=True, **options_of(tmp_path / "x.tar"))


def test_new_fields_and_other_library_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the index get wider; the recipe lists all versions."""
    make(tmp_path / "images", (".",), 6, 5)
    for number, text in enumerate(("path\n", "path,caption\n")):
        rows = [f"images/{i:03d}.png" + ",words" * number for i in range(3 * number, 3 * number + 3)]
        (tmp_path / f"{number}.csv").write_text(text + "\n".join(rows) + "\n")
    for name in NAMES:
        target = tmp_path / name
        pack(tmp_path / "0.csv", target, **options_of(target))
        with monkeypatch.context() as patch:
            patch.setattr("PIL.__version__", "99.1")
            pack(tmp_path / "1.csv", target, append=True, **options_of(target))
        with open_reader(target) as reader:
            assert str(reader.manifest.recipe["pillow"]).endswith(", 99.1")
            assert [record.fields.get("caption.txt") for record in reader] == [None] * 3 + [b"words"] * 3
            json.dumps(dict(reader.manifest.recipe))


@pytest.mark.parametrize("killed", [False, True])
def test_lists_cover_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool) -> None:
    """One file lists the failed images of all runs, another one their duplicates."""
    keys = []
    for name, seed in (("one", 1), ("two", 2), ("three", 3)):
        make(tmp_path / name, ("b",), 4, seed)
    for name in ("one", "two"):
        (tmp_path / name / "b" / "0000.png").write_bytes(b"broken")
        shutil.copy(tmp_path / name / "b" / "002.png", tmp_path / name / "b" / "0021.png")
    for name in ("one", "two", "three"):
        given: dict[str, Any] = {"resize": 24, "max_errors": 1, "append": name != "one", "workers": 1}
        if killed and name == "two":
            with monkeypatch.context() as patch:
                patch.setattr(Target, "discard", _interrupted)
                with pytest.raises(KeyboardInterrupt):
                    pack(tmp_path / name, tmp_path / "out.tar", **given)
        report = pack(tmp_path / name, tmp_path / "out.tar", **given)
        assert (report.failed, report.duplicates) == ((0, 0) if name == "three" else (1, 1))
        lines = [(tmp_path / f"out.tar.{kind}.jsonl").read_text().splitlines() for kind in ("errors", "duplicates")]
        keys.append([[json.loads(line)["key"] for line in own] for own in lines])
    one, two = [["00000001"], ["00000004"]], [["00000007"], ["00000010"]]
    assert keys[0] == one
    assert keys[1] == keys[2] == [first + second for first, second in zip(one, two, strict=True)]


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("options", "less", "words"),
    [
        ({"icc": "keep"}, {}, "icc=keep, not None"),
        ({"background": "black"}, {}, "background=black, not None"),
        ({"check": "end"}, {}, "check=end, not None"),
        ({"min_size": 4}, {}, "min_size=4, not None"),
        ({"max_aspect": 9.0}, {}, "max_aspect=9.0, not None"),
        (
            {"resize": 16, "mode": "pad", "pad_color": "white"},
            {"resize": 16, "mode": "pad"},
            "pad_color=white, not None",
        ),
        ({"fields": "txt"}, {}, r"fields=\['txt'\], not None"),
    ],
)
def test_an_option_of_the_container_that_is_not_repeated(
    tmp_path: Path, options: dict[str, Any], less: dict[str, Any], words: str
) -> None:
    folder, target = make(tmp_path / "one", ("b",), 4, 1), tmp_path / "x.tar"
    for image in (folder / "b").iterdir():
        image.with_suffix(".txt").write_text("words")
    pack(folder, target, **options)
    with pytest.raises(OptionError, match=words):
        pack(folder, target, append=True, **less)
    pack(folder, target, append=True, **options)
    assert len(FastDataset(target)) == 8


def test_notes_need_not_be_repeated(tmp_path: Path) -> None:
    folder, target = make(tmp_path / "one", ("b",), 4, 1), tmp_path / "x.tar"
    pack(folder, target, notes={"licence": "CC0"})
    pack(folder, target, append=True)
    with open_reader(target) as reader:
        assert reader.manifest.recipe["licence"] == "CC0"
