"""`iofast cat` and `iofast view`: one record to stdout, some records as a picture."""

from __future__ import annotations

import argparse
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from container_sets import COUNT, SUFFIXES, build, fields_of, picture, records
from PIL import Image
from places import ROOT
from tar_sets import foreign

from iofast.cli import main
from iofast.commands.view import choose
from iofast.opening import open_reader, open_writer
from iofast.sheet import MARGIN, SheetOptions, contact_sheet


@pytest.fixture(params=SUFFIXES)
def container(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return build(tmp_path / f"set{request.param}")


def cat(*arguments: object) -> bytes:
    run = subprocess.run(
        [sys.executable, "-m", "iofast", "cat", *map(str, arguments)], capture_output=True, cwd=ROOT, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


class TestCat:
    def test_bytes_of_a_field(self, container: Path) -> None:
        assert cat(container, 5, "--field", "jpg") == fields_of(5)["jpg"]
        assert cat(container, "00000012", "--field", "seg.png") == fields_of(12)["seg.png"]

    def test_listing(self, container: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["cat", str(container), "3"]) == 0
        out = capsys.readouterr().out
        assert "key         00000003\n" in out
        assert "label       0 (cat)\n" in out
        assert "40 x 48 pixels, orientation 6 still to be applied" in out
        assert '{"path":"cat/003.jpg","boxes":[[4,6,20,30]]}' in out

    def test_json(self, container: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["cat", str(container), "00000020", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["index"], facts["split"], facts["class"]) == (20, "val", "emu")
        assert facts["fields"]["cls"] == {"bytes": 1, "text": "2"}
        assert facts["fields"]["jpg"] == {"bytes": len(fields_of(20)["jpg"])}

    def test_keys_of_others(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = foreign(tmp_path / "their.tar", {"a/x.txt": b"1", "a/7.txt": b"2", "12345678.txt": b"3"})
        for record, text in (("a/7", b"2"), ("0", b"1"), ("12345678", b"3")):
            assert main(["cat", str(path), record, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["fields"]["txt"]["text"].encode() == text

    @pytest.mark.parametrize(
        ("record", "field", "words"),
        [
            (COUNT, None, "is not in 0"),
            ("00000099", None, "no record has the key"),
            ("x", None, "no record has the key 'x'"),
            ("1", "seg.png", "has no field 'seg.png', only cls, jpg, json"),
        ],
    )
    def test_what_is_not_there(
        self, container: Path, record: object, field: str | None, words: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["cat", str(container), str(record), *(["--field", field] if field else [])]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1

    def test_a_terminal_gets_text_only(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "set.lmdb") as writer:
            writer.write({"jpg": picture(1), "txt": "hello", "evil.txt": "\x1b]0;x\x07"})

        def shown(field: str) -> tuple[int, bytes]:
            main_end, other_end = pty.openpty()
            command = [sys.executable, "-m", "iofast", "cat", str(tmp_path / "set.lmdb"), "0", "--field", field]
            run = subprocess.run(command, stdout=other_end, stderr=subprocess.PIPE, cwd=ROOT, timeout=60)
            os.close(other_end)
            try:
                out = os.read(main_end, 1 << 16)
            except OSError:  # nothing was written
                out = b""
            os.close(main_end)
            return run.returncode, out

        assert shown("txt") == (0, b"hello\r\n")
        assert shown("jpg") == (2, b"")
        assert shown("evil.txt") == (2, b"")


def cell(sheet: Image.Image, number: int, columns: int, size: int) -> np.ndarray:  # type: ignore[type-arg]
    x = MARGIN + number % columns * (size + MARGIN)
    y = MARGIN + number // columns * (size + 16 + MARGIN)
    return np.asarray(sheet)[y : y + size, x : x + size].astype(np.int64)


class TestView:
    def test_command(self, container: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        target = tmp_path / "sheet.png"
        assert main(["view", str(container), str(target), "--count", "10", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert len(set(facts["indices"])) == 10
        with Image.open(target) as image:
            assert list(image.size) == facts["size"]
        assert main(["view", str(container), str(target)]) == 1
        assert "exists already" in capsys.readouterr().err
        assert main(["view", str(container), str(target), "--overwrite", "--indices", "0-3,7"]) == 0
        assert "5 records" in capsys.readouterr().out
        assert main(["view", str(container), str(tmp_path / "x.jpg")]) == 2
        capsys.readouterr()
        assert main(["view", str(container), str(tmp_path / "no" / "x.png")]) == 1
        assert f"{tmp_path / 'no'} is not a folder, so x.png cannot be made" in capsys.readouterr().err
        assert main(["view", str(container), str(tmp_path / "x.png"), "--size", "5"]) == 2
        assert "size must be 16 to 2048 pixels of a cell, found 5" in capsys.readouterr().err

    def test_upright_pixels(self, tmp_path: Path) -> None:
        """Red above, blue below once upright; stored lying on its side."""
        upright = np.zeros((64, 32, 3), np.uint8)
        upright[:32, :, 0], upright[32:, :, 2] = 255, 255
        stored = Image.fromarray(np.rot90(upright).copy())  # orientation 6: to be turned clockwise
        exif, out = Image.Exif(), io.BytesIO()
        exif[0x0112] = 6
        stored.save(out, "jpeg", quality=95, exif=exif)
        with open_writer(tmp_path / "set.lmdb") as writer:
            writer.write({"jpg": out.getvalue()})
            writer.write({"rgb": upright.tobytes(), "json": {"width": 32, "height": 64}})
        with open_reader(tmp_path / "set.lmdb") as reader:
            sheet = contact_sheet(reader, [0, 1], SheetOptions(size=64, columns=2))
        for number in range(2):
            shown = cell(sheet, number, 2, 64)
            assert (shown[4:28, 20:44] - (255, 0, 0)).__abs__().max() < 12
            assert (shown[36:60, 20:44] - (0, 0, 255)).__abs__().max() < 12
            assert (shown[:, :14] == 255).all()

    def test_mask_and_boxes(self, tmp_path: Path) -> None:
        grey, out = Image.new("RGB", (64, 64), (100, 100, 100)), io.BytesIO()
        grey.save(out, "png")
        mask, stored = Image.new("L", (64, 64)), io.BytesIO()
        mask.paste(3, (32, 0, 64, 64))
        mask.save(stored, "png")
        with open_writer(tmp_path / "set.lmdb") as writer:
            writer.write({"png": out.getvalue(), "seg.png": stored.getvalue(), "boxes.json": [[8, 10, 20, 30]]})
        with open_reader(tmp_path / "set.lmdb") as reader:
            both = cell(contact_sheet(reader, [0], SheetOptions(size=64)), 0, 1, 64)
            plain = cell(contact_sheet(reader, [0], SheetOptions(size=64, mask="", boxes="")), 0, 1, 64)
            sizes = cell(contact_sheet(reader, [0], SheetOptions(size=64, mask="", box_format="xywh")), 0, 1, 64)
        assert (plain == 100).all()
        assert (both[:, 34:] != 100).any(axis=2).all()
        assert (both[35:, :30] == 100).all()
        changed = np.argwhere((both[:, :30] != 100).any(axis=2))
        assert changed.min(0).tolist() == [10, 8]
        assert changed.max(0).tolist() == [30, 20]
        assert np.argwhere((sizes != 100).any(axis=2)).max(0).tolist() == [40, 28]

    @pytest.mark.parametrize(
        "boxes", [b"[[1,2", b'{"boxes": 7}', b"[[1,2,3],null,[1,2,3,NaN],[9,9,1e400,-5]]", b'[{"bbox":[1,2,3,4]}]']
    )
    def test_boxes_of_any_kind_do_no_harm(self, tmp_path: Path, boxes: bytes) -> None:
        with open_writer(tmp_path / "set.lmdb") as writer:
            writer.write({"jpg": picture(1), "boxes.json": boxes})
        with open_reader(tmp_path / "set.lmdb") as reader:
            contact_sheet(reader, [0])

    @pytest.mark.parametrize(
        ("recipe", "boxes", "corners"),
        [
            ({}, {"objects": [{"bbox": [8, 10, 12, 20], "segmentation": [[1, 2, 3, 4]]}]}, (8, 10, 20, 30)),
            ({}, {"bboxes": [[8, 10, 12, 20]]}, (8, 10, 20, 30)),
            ({}, {"a": {"box": [8, 10, 20, 30], "area": [1, 2, 3, 4]}}, (8, 10, 20, 30)),
            ({"boxes": "things.json"}, {"boxes": [[8, 10, 20, 30]]}, (8, 10, 20, 30)),
            ({"boxes": "things.json"}, [{"bbox": [8, 10, 20, 30]}], (8, 10, 20, 30)),  # pack was told no xywh
            ({"boxes": "things.json", "box_format": "xywh"}, [[8, 10, 12, 20]], (8, 10, 20, 30)),
            ({"boxes": ["no name"], "box_format": 7}, [[8, 10, 20, 30]], (8, 10, 20, 30)),
        ],
    )
    def test_boxes_mean_what_they_meant_to_pack(
        self, tmp_path: Path, recipe: dict[str, object], boxes: object, corners: tuple[int, ...]
    ) -> None:
        field = "things.json" if recipe.get("boxes") == "things.json" else "boxes.json"
        with open_writer(tmp_path / "set.lmdb", recipe=recipe) as writer:
            writer.write({"png": picture(1, "png", (64, 64)), field: json.dumps(boxes)})
        with open_reader(tmp_path / "set.lmdb") as reader:
            drawn = cell(contact_sheet(reader, [0], SheetOptions(size=64)), 0, 1, 64)
            plain = cell(contact_sheet(reader, [0], SheetOptions(size=64, boxes="")), 0, 1, 64)
        changed = np.argwhere((drawn != plain).any(axis=2))
        assert (*changed.min(0)[::-1].tolist(), *changed.max(0)[::-1].tolist()) == corners

    @pytest.mark.parametrize("option", ["--mask", "--boxes"])
    def test_fields_that_are_not_there(
        self, container: Path, tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["view", str(container), str(tmp_path / "sheet.png"), option, "seg.pgn"]) == 2
        assert f"has no field 'seg.pgn' for {option[2:]}, only cls, " in capsys.readouterr().err
        assert not (tmp_path / "sheet.png").exists()

    def test_image_that_is_broken_is_a_cell(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "set.lmdb", classes=["[\x1b]"]) as writer:
            writer.write({"jpg": picture(1)[:-300], "cls": 0})
            writer.write({"jpg": picture(2), "cls": 0})
        with open_reader(tmp_path / "set.lmdb") as reader:
            sheet = contact_sheet(reader, [0, 1], SheetOptions(size=100, columns=2))
        assert (cell(sheet, 0, 2, 100)[0] == (255, 0, 0)).all()

    def test_which_records(self, tmp_path: Path) -> None:
        def chosen(**options: object) -> list[int]:
            given = {"indices": None, "label": None, "split": None, "count": None, "seed": None, "path": "x"} | options
            return choose(reader, argparse.Namespace(**given))

        with open_reader(build(tmp_path / "set.tar")) as reader:
            assert chosen() == list(range(COUNT))
            assert chosen(label="dog") == chosen(label="1") == list(range(1, COUNT, 3))
            assert chosen(split="val") == list(range(16, COUNT))
            assert chosen(split="val", label="emu") == [17, 20, 23]
            assert chosen(count=5) == chosen(count=5) != chosen(count=5, seed=1)
            assert chosen(indices="4,2-3") == [4, 2, 3]
            for wrong in ({"label": "dgo"}, {"split": "x"}, {"indices": "1-"}, {"indices": "24"}, {"count": 0}):
                with pytest.raises(ValueError, match=r"did you mean|no split|must be|is not in"):
                    chosen(**wrong)


def test_names_are_taken_by_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members = [(f"{n}.{kind}", data) for n in range(3) for kind, data in (("foto", picture(n)), ("k", b"%d" % n))]
    source, names = os.fspath(foreign(tmp_path / "their.tar", members)), ["--names", "image=foto,label=k"]
    assert main(["info", source, *names, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fields"] == ["cls", "jpg", "k"]
    assert main(["verify", source, *names, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 3
    assert main(["cat", source, "2", *names, "--json"]) == 0
    assert "jpg" in json.loads(capsys.readouterr().out)["fields"]
    assert main(["view", source, str(tmp_path / "sheet.png"), *names, "--quiet"]) == 0
    assert main(["convert", source, str(tmp_path / "out.lmdb"), *names, "--quiet"]) == 0
    assert [record.fields["cls"] for record in records(tmp_path / "out.lmdb")] == [b"0", b"1", b"2"]
    assert main(["info", str(tmp_path / "out.lmdb"), *names]) == 2
    assert "is for other programs' tar" in capsys.readouterr().err
