"""Packing a folder: records, options, reports."""

import io
import json
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from tar_sets import foreign

from iofast.cli import main
from iofast.commands.pack import summary
from iofast.containers.lmdb import LmdbReader
from iofast.errors import ContainerError, OptionError, SourceError, TargetError
from iofast.kernel import contract
from iofast.packing import PackOptions, PackReport, pack

ORIENTATION = 0x0112


def picture(seed: int, width: int = 48, height: int = 32) -> Image.Image:
    """A smooth coloured picture, different for each seed, that JPEG keeps well."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def save(path: Path, image: Image.Image, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def make_classes(root: Path, per_class: int = 3, names: tuple[str, ...] = ("cat", "dog")) -> Path:
    for label, name in enumerate(names):
        for number in range(per_class):
            save(root / name / f"{number:03d}.jpg", picture(1000 * label + number), quality=95)
    return root


def difference(payload: bytes, source: Path, size: tuple[int, int]) -> float:
    """Mean difference in levels between a packed image and the same made by Pillow alone, JPEG and all."""
    made = ImageOps.exif_transpose(Image.open(source).convert("RGB")).resize(size, Image.Resampling.BILINEAR)
    made.save(buffer := io.BytesIO(), "JPEG", quality=90)
    a, b = (np.asarray(Image.open(file)).astype(int) for file in (io.BytesIO(payload), buffer))
    return float(np.abs(a - b).mean())


def test_class_folders_become_labelled_records(tmp_path: Path) -> None:
    source = make_classes(tmp_path / "images")
    report = pack(source, tmp_path / "out.lmdb", resize=16, workers=2)
    assert (report.images, report.packed, report.failed, report.classes) == (6, 6, 0, 2)
    assert report.bytes_out == (tmp_path / "out.lmdb").stat().st_size
    assert report.bytes_in == sum(path.stat().st_size for path in source.rglob("*.jpg"))
    with LmdbReader(tmp_path / "out.lmdb") as reader:
        assert reader.manifest.classes == ("cat", "dog")
        records = list(reader)
        assert [record.key for record in records] == [f"{i:08d}" for i in range(6)]
        assert [record.fields["cls"] for record in records] == [b"0"] * 3 + [b"1"] * 3
        about = json.loads(records[4].fields["json"])
        assert about == {"path": "dog/001.jpg", "original_width": 48, "original_height": 32, "packed": "resized"}
        located = reader.locate(np.arange(6))
        assert located.width.tolist() == [24] * 6
        assert located.height.tolist() == [16] * 6
        assert located.orientation.tolist() == [1] * 6
        assert difference(records[4].fields["jpg"], source / "dog" / "001.jpg", (24, 16)) < 3
    assert sorted(os.listdir(tmp_path)) == ["images", "out.lmdb"]


def test_without_a_size_files_are_kept_byte_by_byte(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    source = tmp_path / "images"
    save(source / "a.jpg", picture(1), quality=80, exif=exif)
    save(source / "b.png", picture(2))
    save(source / "c.webp", picture(3))
    save(source / "d.bmp", picture(4))
    pack(source, tmp_path / "out.lmdb")
    with LmdbReader(tmp_path / "out.lmdb") as reader:
        records = list(reader)
        assert reader.manifest.classes is None
        assert records[0].fields["jpg"] == (source / "a.jpg").read_bytes()
        assert records[1].fields["png"] == (source / "b.png").read_bytes()
        assert records[2].fields["webp"] == (source / "c.webp").read_bytes()
        assert "cls" not in records[0].fields
        kept = [json.loads(record.fields["json"])["packed"] for record in records]
        assert kept == ["kept", "kept", "kept", "encoded"]  # no field is called bmp
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(records[3].fields["png"]))), np.asarray(picture(4)))
        located = reader.locate(np.array([0]), "jpg")
        assert (located.orientation[0], located.width[0], located.height[0]) == (6, 32, 48)


@pytest.mark.parametrize(
    ("keywords", "size", "field"),
    [
        ({"resize": 16}, (24, 16), "jpg"),
        ({"resize": 24, "mode": "long"}, (24, 16), "jpg"),
        ({"resize": 16, "mode": "exact"}, (16, 16), "jpg"),
        ({"resize": 16, "mode": "crop", "format": "png"}, (16, 16), "png"),
        ({"resize": 64, "only_shrink": True}, (48, 32), "jpg"),
        ({"resize": 64, "format": "webp", "filter": "lanczos"}, (96, 64), "webp"),
        ({"mode": "none", "format": "png"}, (48, 32), "png"),
    ],
)
def test_sizes_and_formats(tmp_path: Path, keywords: dict[str, Any], size: tuple[int, int], field: str) -> None:
    save(tmp_path / "images" / "a.jpg", picture(1))
    pack(tmp_path / "images", tmp_path / "out.lmdb", workers=1, **keywords)
    with LmdbReader(tmp_path / "out.lmdb") as reader:
        payload = reader.record(0).fields[field]
        assert Image.open(io.BytesIO(payload)).size == size
        assert (int(reader.locate(np.array([0])).width[0]), int(reader.locate(np.array([0])).height[0])) == size


def test_the_order_is_shuffled_by_the_seed_within_splits(tmp_path: Path) -> None:
    for number in range(25):
        save(tmp_path / "images" / ("val" if number < 5 else "train") / f"{number:02d}.png", picture(number))
    found = []
    for name, options in (("plain", {}), ("one", {"shuffle": 7, "workers": 1}), ("two", {"shuffle": 7, "workers": 2})):
        assert dict(pack(tmp_path / "images", tmp_path / f"{name}.lmdb", **options).splits) == {"train": 20, "val": 5}  # type: ignore[arg-type]
        with LmdbReader(tmp_path / f"{name}.lmdb") as reader:
            assert reader.manifest.splits == {"train": ((0, 20),), "val": ((20, 25),)}
            assert reader.manifest.seed == options.get("shuffle")
            found.append([record.fields["png"] for record in reader])
    assert found[0] != found[1] == found[2]
    assert sorted(found[0][:20]) == sorted(found[1][:20])


def test_manifest_columns_become_fields(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / "pool" / f"{number}.png", picture(number))
    rows = ["a,b,c,caption", "pool/2.png,b,train,zwei", "pool/0.png,a,train,null", "pool/1.png,b,val,eins"]
    (tmp_path / "list.csv").write_text("\n".join(rows) + "\n")
    columns = {"path_column": "a", "label_column": "b", "split_column": "c"}
    pack(tmp_path / "list.csv", tmp_path / "out.lmdb", **columns)
    with LmdbReader(tmp_path / "out.lmdb") as reader:
        assert reader.manifest.classes == ("a", "b")
        assert reader.manifest.splits == {"train": ((0, 2),), "val": ((2, 3),)}
        assert [r.fields["cls"] for r in reader] == [b"1", b"0", b"1"]
        assert [r.fields["caption.txt"] for r in reader] == [b"zwei", b"null", b"eins"]
        assert reader.record(0).fields["png"] == (tmp_path / "pool" / "2.png").read_bytes()


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    save(tmp_path / "images" / "good.png", picture(1))
    os.rename(tmp_path / "images" / "good.png", os.fsencode(tmp_path) + b"/images/caf\xe9.png")
    (tmp_path / "images" / "z.png").write_bytes(b"no image")
    os.rename(tmp_path / "images" / "z.png", os.fsencode(tmp_path) + b"/images/\xff\xfe.png")
    report = pack(tmp_path / "images", tmp_path / "out.lmdb", max_errors=1)
    with LmdbReader(tmp_path / "out.lmdb") as reader:
        assert json.loads(reader.record(0).fields["json"])["path"] == "caf\\xe9.png"
    assert report.errors_file is not None
    assert json.loads(Path(report.errors_file).read_text())["path"] == "\\xff\\xfe.png"


def test_the_recipe_has_options_of_pixels_and_none_of_the_run(tmp_path: Path) -> None:
    source = make_classes(tmp_path / "images")
    pack(source, tmp_path / "out.lmdb", resize=16, quality=77, workers=2, max_errors=3)
    with LmdbReader(tmp_path / "out.lmdb") as reader:
        recipe = dict(reader.manifest.recipe)
    assert recipe["quality"] == 77
    assert recipe["mode"] == "short"
    assert {"iofast", "kernel", "pillow"} <= recipe.keys()
    assert not {"workers", "max_errors", "overwrite", "source", "target", "time", "host"} & recipe.keys()


def test_dry_run_writes_nothing_and_estimates_well(tmp_path: Path) -> None:
    source = make_classes(tmp_path / "images", per_class=60)
    (source / "dog" / "bad.jpg").write_bytes(b"bad")
    dry = pack(source, tmp_path / "out.lmdb", resize=24, dry_run=True)
    assert os.listdir(tmp_path) == ["images"]
    assert dry.estimate is not None
    assert (dry.packed, dry.images) == (0, 121)
    real = pack(source, tmp_path / "out.lmdb", resize=24, max_errors=1)
    assert real.estimate is None
    assert 0.5 < dry.estimate.bytes_out / real.bytes_out < 2
    assert 0.9 < dry.bytes_in / real.bytes_in < 1.1
    assert dry.estimate.bytes_peak >= dry.estimate.bytes_out
    assert dry.estimate.seconds > 0


def test_report_as_json(tmp_path: Path) -> None:
    report = pack(make_classes(tmp_path / "images"), tmp_path / "out.lmdb", resize=16)
    value = json.loads(report.to_json())
    assert value["version"] == 2
    assert value["status"] == 0
    assert value.keys() >= {field.name for field in fields(PackReport)} | {"images_per_second"}


def test_report_in_a_notebook(tmp_path: Path) -> None:
    report = pack(make_classes(tmp_path / "<b>"), tmp_path / "out.lmdb", resize=16)
    assert re.fullmatch(r"PackReport\('.*out\.lmdb': 6 of 6 images, [\d,]+ bytes in [\d.]+ s\)", repr(report))
    assert "<tr><th>packed</th><td>6</td></tr>" in report._repr_html_()
    assert "&lt;b&gt;" in report._repr_html_()
    flat = pack(tmp_path / "<b>" / "cat", tmp_path / "flat.lmdb", resize=16)
    assert f" of {flat.images} images, {flat.images} unlabelled, " in repr(flat)
    forecast = pack(tmp_path / "<b>", tmp_path / "other.lmdb", resize=16, dry_run=True)
    assert re.fullmatch(r"PackReport\('.*': 6 images, about [\d,]+ bytes in \d+ s\)", repr(forecast))


def test_warnings_of_the_source_are_passed_on(tmp_path: Path) -> None:
    source = make_classes(tmp_path / "images")
    save(source / "loose.jpg", picture(9))
    with pytest.warns(UserWarning, match="left out") as caught:
        report = pack(source, tmp_path / "out.lmdb")
    assert report.warnings == (str(caught[0].message),)
    assert caught[0].filename == __file__  # the caller of pack


def test_warnings_of_a_copy_name_the_caller(tmp_path: Path) -> None:
    members = [("0.jpg", b"an image"), ("0.extra.pyd", b"(cos\nsystem\n")]
    source = foreign(tmp_path / "s.tar", members)
    with pytest.warns(UserWarning, match="pickled data") as caught:
        pack(source, tmp_path / "out.lmdb", format="keep", check="end")
    assert [each.filename for each in caught] == [__file__]


def test_a_copied_record_without_a_field_is_named_with_its_file(tmp_path: Path) -> None:
    source = foreign(tmp_path / "s.tar", [("00000000.jpg", b"an image"), ("00000001.pkl", b"(cos\nsystem\n")])
    named = pytest.raises(ContainerError, match=r"s\.tar: 00000001 has no field that can be stored")
    with pytest.warns(UserWarning, match="pickled"), named:
        pack(source, tmp_path / "out.lmdb", format="keep", check="end")


def test_captions_beside_images_are_noted_without_a_warning(tmp_path: Path) -> None:
    source = make_classes(tmp_path / "images")
    (source / "cat" / "0.txt").write_text("a caption")
    report = pack(source, tmp_path / "out.lmdb")  # warnings are errors
    assert report.notes == ("files that are no images left out: 1 .txt (cat/0.txt)",)
    assert not report.warnings
    assert "  note       files that are no images left out: 1 .txt (cat/0.txt)" in summary(report)


def test_a_target_inside_the_source_is_refused(tmp_path: Path) -> None:
    source = make_classes(tmp_path / "images")
    with pytest.raises(TargetError, match="inside the source"):
        pack(source, source / "out.lmdb")
    assert sorted(os.listdir(source)) == ["cat", "dog"]


def test_nothing_to_pack_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        with pytest.raises(SourceError):
            pack(tmp_path / name, tmp_path / "out.lmdb")
    assert os.listdir(tmp_path) == ["empty"]


def test_defaults_are_the_kernels() -> None:
    assert (PackOptions().max_pixels, PackOptions().max_memory) == (contract.MAX_PIXELS, contract.MAX_MEMORY)
    recipe, usual = contract.TranscodeRecipe(), PackOptions(resize=256).recipe()
    for name in ("filter", "quality", "subsampling", "reducing_gap"):
        assert getattr(recipe, name) == getattr(usual, name), name


def test_the_command_line_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pack", "--help"])
    shown = capsys.readouterr().out
    for each in fields(PackOptions):
        assert (f" --{each.name.replace('_', '-')}" in shown) == each.metadata["typed"], each.name
        assert f"    {each.name} " in str(PackOptions.__doc__)


@pytest.mark.parametrize(("name", "advice"), [("resise", ": did you mean resize?"), ("xyz", ": see PackOptions")])
def test_options_that_pack_lacks(tmp_path: Path, name: str, advice: str) -> None:
    for given in ([], [PackOptions()]):
        with pytest.raises(OptionError, match=f"^{name} is not an option of pack{re.escape(advice)}$"):
            pack(tmp_path, tmp_path / "out.lmdb", *given, **{name: 64})


def test_keywords_win_over_options(tmp_path: Path) -> None:
    source = make_classes(tmp_path / "images")
    pack(source, tmp_path / "out.lmdb", PackOptions(resize=16, quality=50), quality=60)
    with LmdbReader(tmp_path / "out.lmdb") as reader:
        assert (reader.manifest.recipe["size"], reader.manifest.recipe["quality"]) == (16, 60)
