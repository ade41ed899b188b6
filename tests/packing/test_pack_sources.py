"""Several sources packed as one: their records in order, classes united by name, nothing else changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from container_sets import picture, records

from iofast import FastDataset, open_reader, open_writer, pack
from iofast.cli import main
from iofast.errors import OptionError, SourceError


def made(path: Path, classes: list[str] | None, *, split: str = "all", count: int = 4) -> Path:
    with open_writer(path, classes=classes, split=split) as writer:
        for number in range(count):
            writer.write({"jpg": picture(number), "cls": number % 2})
    return path


@pytest.mark.filterwarnings("ignore:classes of")
def test_records_of_the_first_then_of_the_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [made(tmp_path / "a.lmdb", ["cat", "dog"]), made(tmp_path / "b.tar", ["ant", "cat"])]
    (tmp_path / "c" / "ant").mkdir(parents=True)
    (tmp_path / "c" / "ant" / "x.jpg").write_bytes(picture(9))
    target = tmp_path / "both.lmdb"
    assert main(["pack", *map(str, sources), str(tmp_path / "c"), str(target), "--quiet", "--workers", "1"]) == 0
    report = pack([*sources, tmp_path / "c"], tmp_path / "again.tar", workers=2)
    assert f"classes of {sources[1]} have new numbers: ant 0 -> 2, cat 1 -> 0" in report.warnings
    assert (report.packed, report.source) == (9, ", ".join(map(str, [*sources, tmp_path / "c"])))
    assert "ant 0 -> 2" in capsys.readouterr().err
    for path in (target, tmp_path / "again.tar"):
        dataset = FastDataset(path)
        assert (dataset.classes, dataset.targets) == (["cat", "dog", "ant"], [0, 1, 0, 1, 2, 0, 2, 0, 2])
        found = records(path)
        assert [each.fields["jpg"] for each in found] == [picture(n) for n in (0, 1, 2, 3, 0, 1, 2, 3, 9)]
        assert b'"path":"ant/x.jpg"' in found[-1].fields["json"]
        assert [each.fields["cls"] for each in found] == [b"%d" % label for label in dataset.targets]


def test_splits_and_shares(tmp_path: Path) -> None:
    train = [made(tmp_path / f"t{n}.lmdb", ["cat", "dog"], split="train") for n in range(2)]
    val = made(tmp_path / "v.lmdb", ["cat", "dog"], split="val", count=3)
    pack([val, *train], tmp_path / "all.lmdb", workers=1)
    with open_reader(tmp_path / "all.lmdb") as reader:
        assert reader.manifest.splits == {"train": ((0, 8),), "val": ((8, 11),)}
    plain = [made(tmp_path / f"p{n}.lmdb", ["cat", "dog"]) for n in range(2)]
    assert set(pack(plain, tmp_path / "divided.lmdb", split="val=0.5", workers=1).splits) == {"train", "val"}
    with pytest.raises(OptionError, match="the first has no splits, the second the splits train"):
        pack([plain[0], train[0]], tmp_path / "x.lmdb", workers=1)


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (None, r"b\.lmdb has labels without class names"),
        (["Cat", "dog"], "class 'Cat' of .* and 'cat' of .*: the same, or"),
        (["cat", "cafe\u0301"], r"class 'cafe\\u0301' of .* and 'caf\\xe9' of .*: the same, or"),
    ],
)
def test_classes_that_cannot_be_united(tmp_path: Path, classes: list[str] | None, words: str) -> None:
    sources = [made(tmp_path / "a.lmdb", ["cat", "dog", "caf\xe9"]), made(tmp_path / "b.lmdb", classes)]
    with pytest.raises(OptionError, match=words):
        pack(sources, tmp_path / "out.lmdb", workers=1)


def test_what_is_no_list_of_sources(tmp_path: Path) -> None:
    source = made(tmp_path / "a.lmdb", None)
    with pytest.raises(OptionError, match="found an empty list"):
        pack([], tmp_path / "out.lmdb", workers=1)
    with pytest.raises(SourceError, match="the source is empty"):
        pack([source, ""], tmp_path / "out.lmdb", workers=1)
    with pytest.raises(OptionError, match=r"b\.lmdb is, or lies in, the source"):
        pack([source, made(tmp_path / "b.lmdb", None)], tmp_path / "b.lmdb", workers=1, overwrite=True)
