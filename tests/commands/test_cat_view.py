"""`iofast cat` and `iofast view`: one record on stdout, some records in a picture, also after a preset."""

import argparse
import io
import json
import os
import pty
from pathlib import Path

import numpy as np
import pytest
from command_line import CommandLine
from container_sets import COUNT, build, fields_of, picture, records
from PIL import Image
from tar_sets import foreign

from iofast import open_writer
from iofast import transforms as T
from iofast.cli import main
from iofast.commands.view import PRESETS, choose, preset
from iofast.opening import open_reader
from iofast.sheet import CAPTION, MARGIN, SheetOptions, contact_sheet


class TestCat:
    def test_bytes_of_a_field(self, container: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
        for record, field, number in (("5", "jpg", 5), ("00000012", "seg.png", 12)):
            assert main(["cat", str(container), record, "--field", field]) == 0
            assert capsysbinary.readouterr().out == fields_of(number)[field]

    def test_listing(self, container: Path, iofast: CommandLine) -> None:
        out = iofast("cat", container, 3).out
        assert "key         00000003\n" in out
        assert "label       0 (cat)\n" in out
        assert "40 x 48 pixels, orientation 6 still to be applied" in out
        assert '{"path":"cat/003.jpg","boxes":[[4,6,20,30]]}' in out
        facts = iofast("cat", container, "00000020", "--json").facts
        assert (facts["index"], facts["split"], facts["class"]) == (20, "val", "emu")
        assert facts["fields"]["cls"] == {"bytes": 1, "text": "2"}

    @pytest.mark.parametrize(("record", "text"), [("a/7", "2"), ("0", "1"), ("12345678", "3")])
    def test_keys_of_other_programs(self, tmp_path: Path, iofast: CommandLine, record: str, text: str) -> None:
        path = foreign(tmp_path / "their.tar", {"a/x.txt": b"1", "a/7.txt": b"2", "12345678.txt": b"3"})
        assert iofast("cat", path, record, "--json").facts["fields"]["txt"]["text"] == text

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (COUNT, "is not in 0"),
            ("00000099", "no record has the key"),
            ("x", "no record has the key 'x'"),
            ("1 --field seg.png", "has no field 'seg.png', only cls, jpg, json"),
        ],
    )
    def test_what_is_not_there(self, container: Path, words: object, message: str, iofast: CommandLine) -> None:
        iofast("cat", container, *str(words).split()).fails(2, message)

    def test_a_terminal_gets_text_only(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with open_writer(tmp_path / "set.lmdb") as writer:
            writer.write({"jpg": picture(1), "txt": "hello", "evil.txt": "\x1b]0;x\x07"})

        def shown(field: str) -> tuple[int, bytes]:
            main_end, other_end = pty.openpty()
            with os.fdopen(other_end, "w") as terminal, monkeypatch.context() as patch:
                patch.setattr("sys.stdout", terminal)
                status = main(["cat", str(tmp_path / "set.lmdb"), "0", "--field", field])
                terminal.flush()
                os.set_blocking(main_end, False)
                try:
                    out = os.read(main_end, 1 << 16)
                except BlockingIOError:  # nothing was written
                    out = b""
            os.close(main_end)
            return status, out

        assert shown("txt") == (0, b"hello\r\n")
        assert shown("jpg") == (2, b"")
        assert shown("evil.txt") == (2, b"")


def cell(sheet: Image.Image, number: int, columns: int, size: int) -> np.ndarray:  # type: ignore[type-arg]
    x = MARGIN + number % columns * (size + MARGIN)
    y = MARGIN + number // columns * (size + 16 + MARGIN)
    return np.asarray(sheet)[y : y + size, x : x + size].astype(np.int64)


class TestView:
    def test_command(self, container: Path, tmp_path: Path, iofast: CommandLine) -> None:
        target = tmp_path / "sheet.png"
        facts = iofast("view", container, target, "--count", "10", "--json").facts
        assert len(set(facts["indices"])) == 10
        with Image.open(target) as image:
            assert list(image.size) == facts["size"]
        iofast("view", container, target).fails(1, "exists already")
        assert "5 records" in iofast("view", container, target, "--overwrite", "--indices", "0-3,7").out

    @pytest.mark.parametrize(
        ("status", "words", "message"),
        [
            (2, "x.jpg", "name must end with .png"),
            (1, "no/x.png", "no is not a folder, so "),
            (2, "x.png --size 5", "size must be 16 to 2048 pixels of a cell, found 5"),
            (2, "x.png --mask seg.pgn", "has no field 'seg.pgn' for mask, only cls, "),
        ],
    )
    def test_errors(self, tmp_path: Path, iofast: CommandLine, status: int, words: str, message: str) -> None:
        target, *options = words.split()
        iofast("view", build(tmp_path / "set.lmdb"), tmp_path / target, *options).fails(status, message)
        assert not list(tmp_path.glob("x.*"))

    def test_upright_pixels(self, tmp_path: Path) -> None:
        """Red above and blue below when upright; stored on its side."""
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

    @pytest.mark.parametrize("boxes", [b"[[1,2", b'{"boxes": 7}', b"[[1,2,3],null,[1,2,3,NaN],[9,9,1e400,-5]]"])
    def test_invalid_boxes_do_no_harm(self, tmp_path: Path, boxes: bytes) -> None:
        with open_writer(tmp_path / "set.lmdb") as writer:
            writer.write({"jpg": picture(1), "boxes.json": boxes})
        with open_reader(tmp_path / "set.lmdb") as reader:
            contact_sheet(reader, [0])

    @pytest.mark.parametrize(
        ("recipe", "boxes"),
        [
            ({}, {"objects": [{"bbox": [8, 10, 12, 20], "segmentation": [[1, 2, 3, 4]]}]}),
            ({}, {"bboxes": [[8, 10, 12, 20]]}),
            ({}, {"a": {"box": [8, 10, 20, 30], "area": [1, 2, 3, 4]}}),
            ({"boxes": "things.json"}, [{"bbox": [8, 10, 20, 30]}]),  # packed as xyxy
            ({"boxes": "things.json", "box_format": "xywh"}, [[8, 10, 12, 20]]),
            ({"boxes": ["no name"], "box_format": 7}, [[8, 10, 20, 30]]),
        ],
    )
    def test_boxes_are_read_as_in_packing(self, tmp_path: Path, recipe: dict[str, object], boxes: object) -> None:
        field = "things.json" if recipe.get("boxes") == "things.json" else "boxes.json"
        with open_writer(tmp_path / "set.lmdb", recipe=recipe) as writer:
            writer.write({"png": picture(1, "png", (64, 64)), field: json.dumps(boxes)})
        with open_reader(tmp_path / "set.lmdb") as reader:
            drawn = cell(contact_sheet(reader, [0], SheetOptions(size=64)), 0, 1, 64)
            plain = cell(contact_sheet(reader, [0], SheetOptions(size=64, boxes="")), 0, 1, 64)
        changed = np.argwhere((drawn != plain).any(axis=2))
        assert (*changed.min(0)[::-1].tolist(), *changed.max(0)[::-1].tolist()) == (8, 10, 20, 30)

    def test_which_records(self, tmp_path: Path) -> None:
        def chosen(**options: object) -> list[int]:
            values = {"indices": None, "label": None, "split": None, "count": None, "seed": None, "path": "x"} | options
            return choose(reader, argparse.Namespace(**values))

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


def test_every_command_takes_names(tmp_path: Path, iofast: CommandLine) -> None:
    members = [(f"{n}.{kind}", data) for n in range(3) for kind, data in (("foto", picture(n)), ("k", b"%d" % n))]
    source, names = foreign(tmp_path / "their.tar", members), ["--names", "image=foto,label=k"]
    assert iofast("info", source, *names, "--json").facts["fields"] == ["cls", "jpg", "k"]
    assert iofast("verify", source, *names, "--json").facts["images"] == 3
    assert "jpg" in iofast("cat", source, "2", *names, "--json").facts["fields"]
    assert iofast("view", source, tmp_path / "sheet.png", *names, "--quiet").status == 0
    assert iofast("convert", source, tmp_path / "out.lmdb", *names, "--quiet").status == 0
    assert [record.fields["cls"] for record in records(tmp_path / "out.lmdb")] == [b"0", b"1", b"2"]
    iofast("info", tmp_path / "out.lmdb", *names).fails(2, "is for other programs' tar")


GRAY = (90, 130, 200)


def view(path: Path, transform: str, *options: object) -> np.ndarray:  # type: ignore[type-arg]
    target = path.parent / "sheet.png"
    words = [str(path), str(target), "--transform", transform, *map(str, options), "--overwrite", "--quiet"]
    assert main(["view", *words]) == 0
    with Image.open(target) as image:
        return np.asarray(image.convert("RGB")).astype(np.int64)


def plain(path: Path, **fields: object) -> Path:
    """A container of three images of one colour."""
    out = io.BytesIO()
    Image.new("RGB", (64, 64), GRAY).save(out, "png")
    with open_writer(path) as writer:
        for _ in range(3):
            writer.write({"png": out.getvalue(), **fields})
    return path


def test_normalisation_is_undone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sheet = view(plain(tmp_path / "set.lmdb"), "train(32)", "--size", 32)
    assert (abs(sheet[MARGIN : MARGIN + 32, MARGIN : MARGIN + 32] - GRAY) <= 1).all()
    assert caplog.messages == []  # such as that there are no labels


def test_views_are_side_by_side_in_proportion(tmp_path: Path) -> None:
    dino, options = "dino(64, local_size=32, local=3)", ("--size", 64, "--indices", 0)
    sheet = view(plain(tmp_path / "set.lmdb"), dino, *options)
    assert sheet.shape[1] == 2 * MARGIN + 2 * (64 + MARGIN) + 3 * (32 + MARGIN) - MARGIN
    assert sheet.shape[0] == 2 * MARGIN + 64 + 2 * CAPTION
    row = (sheet[MARGIN + 60] != 255).any(axis=1)
    starts = np.flatnonzero(np.diff(row.astype(int), prepend=0) == 1).tolist()
    assert starts == [MARGIN, 64 + 2 * MARGIN, *(MARGIN + 2 * (64 + MARGIN) + n * (32 + MARGIN) for n in range(3))]
    assert (sheet[MARGIN : MARGIN + 32, 2 * (64 + MARGIN) + MARGIN :] == 255).all()  # above the smaller ones


def test_every_preset_draws(tmp_path: Path) -> None:
    path = build(tmp_path / "set.tar")
    for name in PRESETS:
        assert view(path, f"{name}(24)", "--count", 3).size


def test_random_choices_depend_on_the_seed(container: Path) -> None:
    def drawn(seed: int) -> np.ndarray:  # type: ignore[type-arg]
        return view(container, "train(32)", "--indices", "0-3", "--seed", seed)

    assert (drawn(1) == drawn(1)).all()
    assert (drawn(1) != drawn(2)).any()


def test_a_broken_image_has_a_red_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_writer(tmp_path / "set.lmdb") as writer:
        for data in (picture(1)[:-300], picture(2)):
            writer.write({"jpg": data})
    for name in ("train(32)", "dino(32, 24)"):
        sheet = view(tmp_path / "set.lmdb", name, "--size", 100, "--columns", 1)
        assert (sheet[MARGIN, MARGIN : MARGIN + 100] == (255, 0, 0)).all()
    assert capsys.readouterr().err == ""


def test_arguments_are_literals() -> None:
    assert preset("train") == T.compile(T.train())
    assert preset(" dino(64, local=2, scale=(0.3, 1)) ") == T.compile(T.dino(64, local=2, scale=(0.3, 1)))
    assert preset("timm_train(64, re_prob=0.25)") == T.compile(T.timm_train(64, re_prob=0.25))
    assert set(PRESETS) == {"train", "evaluate", "timm_train", "simclr", "dino"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dnio(224)", "found 'dnio': did you mean dino?"),
        ("compile([])", "must be one of dino, evaluate, "),
        ("train(a=1)", "train does not take the arguments in 'train(a=1)': "),
        ("train('x')", "RandomResizedCrop: size must be an int"),
        ("dino(scale=7)", "scale must be (low, high), found 7"),
        ("train(30000)", "expected at most 67,108,864 pixels of each image, found 900,000,000"),
        ("timm_train(24, train_crop_mode='x')", "timm_train: train_crop_mode must be rrc, rkrc or rkrr, found 'x'"),
        ("train(open('x'))", "must be a preset, with numbers"),
        ("train(**{})", "must be a preset, with numbers"),
        ("__import__('os').getcwd()", "must be a preset, with numbers"),
        ("(" * 5000, "must be a preset, with numbers"),
        ("", "must be a preset, with numbers"),
    ],
)
def test_invalid_presets(text: str, words: str, tmp_path: Path, iofast: CommandLine) -> None:
    path, target = plain(tmp_path / "set.lmdb"), tmp_path / "sheet.png"
    iofast("view", path, target, "--transform", text).fails(2, words)
    assert not target.exists()
