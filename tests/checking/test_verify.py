"""`iofast verify`: a sound container has no problems, and damage is found anywhere."""

import json
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest
from container_sets import COUNT, SUFFIXES, build, picture, records
from tar_sets import foreign

from iofast.checking import verify
from iofast.cli import main
from iofast.containers.file_bytes import FileBytes
from iofast.containers.index import Layout
from iofast.containers.shards import read_manifest
from iofast.containers.tfrecord import frames
from iofast.errors import ContainerError
from iofast.opening import open_reader
from iofast.record_writer import open_writer


@pytest.fixture(params=SUFFIXES)
def container(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return build(tmp_path / f"set{request.param}")


def flip(file: Path, place: int, bits: int = 0xFF) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= bits
    file.write_bytes(data)


def place_of(container: Path, index: int, field: str | None = None) -> tuple[Path, int, int]:
    """File, offset and length of a payload."""
    with open_reader(container) as reader:
        located = reader.locate(np.array([index]), field)
        offset, length = int(located.offset[0]), int(located.length[0])
        names = reader.manifest.shards
        name = names[int(located.file[0])].name
    return (container.parent / name if name else container), offset, length


class TestWhole:
    def test_every_container(self, container: Path) -> None:
        result = verify(container)
        assert result.problems == []
        assert result.whole
        masks = sum(number % 4 == 0 for number in range(COUNT))
        assert (result.records, result.images) == (COUNT, COUNT + masks)
        assert result.checked == sum(len(record.fields) for record in records(container))
        assert result.unchecked == 0
        assert verify(build(container.with_name(f"empty{container.suffix}"), 0)).whole

    def test_duplicates_are_counted(
        self, container: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert (verify(container).duplicates, verify(container).equal) == (0, [])
        twice = container.with_name(f"twice{container.suffix}")
        with open_writer(twice) as writer:
            for number in (3, 4, 3, 5, 4, 3):
                writer.write({"jpg": picture(number)})
        result = verify(twice, decode=False)
        pairs = [("00000000", "00000002"), ("00000001", "00000004"), ("00000002", "00000005")]
        assert (result.duplicates, result.equal, result.whole) == (3, pairs, True)
        assert main(["verify", str(twice)]) == 0
        said = "duplicates: 3 images equal to earlier ones: 00000000 = 00000002, 00000001 = 00000004"
        assert said in capsys.readouterr().out
        monkeypatch.setattr(sys.modules["iofast.checking.verify"], "MOST_COMPARED", 5)
        assert "duplicates were not looked for" in verify(twice, decode=False).notes[0]

    @pytest.mark.parametrize("workers", [1, 3])
    def test_progress_counts_every_record(self, container: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules["iofast.checking.verify"], "SLICE_RECORDS", 1)  # more slices than may wait
        begun, steps = [], []
        verify(container, workers=workers, begin=begun.append, progress=lambda *step: steps.append(step))
        assert begun == [COUNT]
        assert [step[0] for step in steps] == [1] * COUNT

    def test_raw_pixels(self, tmp_path: Path) -> None:
        path = tmp_path / "raw.lmdb"
        with open_writer(path) as writer:
            writer.write({"rgb": bytes(range(90)), "json": {"width": 6, "height": 5}})
        assert verify(path).whole
        flip(*place_of(path, 0, "rgb")[:2])
        assert ["rgb" in problem.reason for problem in verify(path).problems] == [True]

    def test_plain_folder(self, tmp_path: Path) -> None:
        (tmp_path / "cat").mkdir()
        for number in range(3):
            (tmp_path / "cat" / f"{number}.jpg").write_bytes(picture(number))
        result = verify(tmp_path)
        assert result.whole
        assert (result.images, result.checked) == (3, 0)
        assert "no checksums" in result.notes[0]
        (tmp_path / "cat" / "1.jpg").write_bytes((tmp_path / "cat" / "1.jpg").read_bytes()[:-30])
        assert [Path(problem.where).name for problem in verify(tmp_path).problems] == ["1.jpg"]

    def test_foreign_tar(self, tmp_path: Path) -> None:
        members = {"a.jpg": picture(1), "a.cls": b"7\n", "b.jpg": picture(2)[:-40], "b.cls": b"x"}
        path = foreign(tmp_path / "their.tar", members)
        result = verify(path)
        assert [(problem.key, problem.field) for problem in result.problems] == [("b", "jpg")]
        assert result.unchecked == 4


class TestDamage:
    def test_payloads_are_named(self, container: Path) -> None:
        for index in (COUNT - 1, 0, 5):
            file, offset, length = place_of(container, index)
            flip(file, offset + length // 2)
        about = [problem for problem in verify(container).problems if problem.index is not None]
        assert [(each.index, each.field) for each in about] == [(0, "jpg"), (5, "jpg"), (COUNT - 1, "jpg")]
        assert (about[1].key, about[1].path, about[1].offset) == ("00000005", "emu/005.jpg", offset)
        assert str(file) in about[1].where
        assert "CRC32C differs" in about[1].reason

    def test_column_of_the_index_is_named(self, tmp_path: Path) -> None:
        """Readers trust a column, so only `verify` finds this damage."""
        file = build(tmp_path / "x.tar").with_name("x.tar.index")
        manifest = read_manifest(tmp_path / "x.tar")
        flip(file, Layout(manifest.count, manifest.fields).starts["width"], 1)
        reasons = [problem.reason for problem in verify(tmp_path / "x.tar").problems]
        assert any("the column width of the index" in reason and "CRC32C differs" in reason for reason in reasons)

    @pytest.mark.parametrize(("suffix", "missing"), [(".tar", True), (".tfrecord", False)])
    def test_the_other_shards_are_looked_at(self, tmp_path: Path, suffix: str, missing: bool) -> None:
        container = build(tmp_path / f"set{suffix}")
        damaged, offset, _ = place_of(container, COUNT - 1)
        flip(damaged, offset + 40)
        with open_reader(container) as reader:
            first = reader.manifest.shards[0]
        shard = tmp_path / first.name
        if missing:
            shard.unlink()
        else:
            shard.write_bytes(shard.read_bytes()[:-7])
        assert shard != damaged
        result = verify(container)
        assert result.problems[-1].index == COUNT - 1
        assert str(shard) in result.problems[0].reason
        assert f"its {first.count} records were not looked at" in result.problems[0].reason
        assert result.images >= COUNT - first.count - 1
        with pytest.raises(ContainerError, match=r"cut off|cannot be read"):  # readers still refuse the set
            open_reader(container)

    def test_image_that_was_broken_when_it_was_stored(self, tmp_path: Path) -> None:
        for suffix in SUFFIXES:
            path = tmp_path / f"bad{suffix}"
            with open_writer(path) as writer:
                writer.write({"jpg": picture(1)})
                writer.write({"jpg": picture(2)[:-200], "seg.png": picture(3, "png")[:-60]})
            problems = verify(path).problems
            assert {(problem.index, problem.field) for problem in problems} == {(1, "jpg"), (1, "seg.png")}
            assert verify(path, decode=False).whole

    @pytest.mark.parametrize("where", ["padding", "header", "end", "second block of the end"])
    def test_bytes_of_a_tar_shard_that_no_payload_has(self, tmp_path: Path, where: str) -> None:
        """Readers do not read these bytes, so only `verify` finds this damage."""
        path = build(tmp_path / "set.tar")
        file, offset, length = place_of(path, 2)
        data = bytearray(file.read_bytes())
        if where == "header":  # another time of change, and the checksum that goes with it
            head = data[offset - 512 : offset]
            head[146] ^= 1
            head[148:156] = b" " * 8
            head[148:156] = b"%06o\0 " % sum(head)
            data[offset - 512 : offset] = head
        else:
            assert length % 512
            end = -(-len(bytes(data).rstrip(b"\0")) // 512) * 512
            data[{"padding": offset + length, "end": len(data) - 1, "second block of the end": end + 600}[where]] = 1
        file.write_bytes(data)
        result = verify(path)
        in_record = where in ("padding", "header")
        assert [problem.index for problem in result.problems] == [2 if in_record else None]
        assert ("is not as the index has it" if in_record else "do not end a shard") in result.problems[0].reason
        assert str(file) in result.problems[0].reason
        assert records(path) == records(build(tmp_path / "again.tar"))

    def test_index_that_does_not_fit_the_container(self, tmp_path: Path) -> None:
        """Two sets of equal sizes, the index of one beside the shards of the other."""
        for suffix in SUFFIXES[1:]:
            for name, first in (("a", 0), ("b", 1)):
                with open_writer(tmp_path / f"{name}{suffix}") as writer:
                    for number in (first, 1 - first):
                        writer.write({"a.txt": b"x" * (600 + 1200 * number), "b.txt": b"y" * (1800 - 1200 * number)})
            a, b = (tmp_path / f"{name}{suffix}" for name in "ab")
            a.with_name(a.name + ".index").write_bytes(b.with_name(b.name + ".index").read_bytes())
            reasons = " ".join(problem.reason for problem in verify(a, decode=False).problems)
            assert "a.txt.length of the index at offset" in reasons

    def test_key_that_was_added(self, tmp_path: Path) -> None:
        path = build(tmp_path / "set.lmdb")
        environment = lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 30)
        with environment, environment.begin(write=True) as txn:
            txn.put(b"00000003.extra", b"1")
            txn.delete(b"00000006.txt")
        reasons = [problem.reason for problem in verify(path).problems]
        assert any("00000003.extra" in reason and "not in the index" in reason for reason in reasons)
        assert any("00000006.txt" in reason for reason in reasons)

    def test_example_between_payloads(self, tmp_path: Path) -> None:
        """Damage outside payloads, which TensorFlow would refuse."""
        path = build(tmp_path / "set.tfrecord", splits=False, shard_size=1 << 30)
        shard = tmp_path / "set-00000-of-00001.tfrecord"
        frame = list(frames(FileBytes(str(shard))))[3]
        flip(shard, frame.offset + 9, 0x20)
        assert [problem.index for problem in verify(path).problems] == [3]


class TestVerifyCommand:
    def test_status_and_summary(self, container: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["verify", str(container)]) == 0
        assert f"all is well ({COUNT} records" in capsys.readouterr().out
        file, offset, _ = place_of(container, 2)
        flip(file, offset + 30)
        assert main(["verify", str(container)]) == 1
        out = capsys.readouterr().out
        assert "00000002: jpg at offset" in out
        assert "(from emu/002.jpg)" in out
        assert main(["verify", str(container), "--quiet"]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "00000002" in captured.err

    def test_json_and_several(self, container: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file, offset, _ = place_of(container, 2)
        flip(file, offset + 30)
        missing = container.with_name("missing.lmdb")
        assert main(["verify", "--json", "--no-decode", str(missing), str(container)]) == 1
        first, second = map(json.loads, capsys.readouterr().out.splitlines())
        assert "does not exist" in first["error"]
        assert second["problems"][-1]["path"] == "emu/002.jpg"
        assert second["images"] == 0
