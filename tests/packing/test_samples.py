"""Samples of several files: masks, boxes and keypoints follow their image through packing."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_images import extent
from PIL import Image

from iofast.containers.lmdb import LmdbReader
from iofast.errors import OptionError, SourceError
from iofast.packing import PackOptions, pack

WIDTH, HEIGHT = 60, 40
SPOT = (36, 8, 48, 20)  # x0, y0, x1, y1 of a bright square: what masks, boxes and keypoints are about
SIZES = ((90, "long"), (32, "exact"), (30, "crop"), (48, "pad"))
MODES: list[dict[str, Any]] = [{}, {"resize": 20}, {"resize": 80, "mode": "pad", "only_shrink": True}]
MODES += [{"resize": size, "mode": mode} for size, mode in SIZES]


def stored(pixels: np.ndarray[Any, Any], orientation: int) -> Image.Image:
    """The stored image that EXIF `orientation` shows as `pixels`."""
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Image.Transpose
    image = Image.fromarray(pixels)
    return image if orientation == 1 else image.transpose(Image.Transpose(back[orientation]))


def moved(box: tuple[int, int, int, int], orientation: int) -> list[int]:
    """An upright box in stored coordinates."""
    mark = np.zeros((HEIGHT, WIDTH), np.uint8)
    mark[box[1] : box[3], box[0] : box[2]] = 1
    return extent(np.asarray(stored(mark, orientation)))


def make_sample(folder: Path, orientation: int = 1, name: str = "a", kind: str = "png") -> Path:
    """An image with a spot, the spot's mask (a palette with 255 in it), box and centre, all as stored; a caption."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.full((HEIGHT, WIDTH, 3), 40, np.uint8)
    labels = np.full((HEIGHT, WIDTH), 3, np.uint8)
    x0, y0, x1, y1 = SPOT
    pixels[y0:y1, x0:x1], labels[y0:y1, x0:x1] = 230, 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored(pixels, orientation).save(folder / f"{name}.{kind}", exif=exif)
    mask = Image.fromarray(np.asarray(stored(labels, orientation)), "P")
    mask.putpalette([level for each in range(256) for level in (each, 255 - each, 7)])
    mask.save(folder / f"{name}.seg.png")
    box = moved(SPOT, orientation)
    centre = [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2]
    (folder / f"{name}.json").write_text(
        json.dumps({"objects": [{"bbox": box, "name": "spot", "keypoints": [*centre, 2]}]})
    )
    (folder / f"{name}.txt").write_text("a spot")
    return folder


SIDES: dict[str, Any] = {"fields": "seg.png,txt,json=boxes.json", "boxes": "boxes.json", "keypoints": "boxes.json"}


def records(target: Path) -> list[dict[str, bytes]]:
    with LmdbReader(target) as reader:
        return [dict(record.fields) for record in reader]


def one(target: Path) -> dict[str, bytes]:
    (fields,) = records(target)
    return fields


def opened(payload: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(payload)))


def boxed(payload: bytes) -> Any:
    return json.loads(payload)["objects"][0]["bbox"]


@pytest.mark.parametrize("keywords", MODES, ids=lambda each: f"{each.get('mode', 'short')}{each.get('resize', '')}")
def test_mask_box_and_keypoint_stay_on_the_spot(tmp_path: Path, keywords: dict[str, Any]) -> None:
    """Of images in all orientations."""
    for orientation in range(1, 9):
        make_sample(tmp_path / "in", orientation, str(orientation))
    pack(tmp_path / "in", tmp_path / "out.lmdb", workers=1, format="png", **SIDES, **keywords)
    made = records(tmp_path / "out.lmdb")
    assert len(made) == 8
    for fields in made:
        image, labels = opened(fields["png"]), opened(fields["seg.png"])
        assert labels.shape == image.shape[:2]
        assert set(np.unique(labels)) <= {0, 3, 255}, "values stay values"
        seen = extent(image[..., 0] > 135)
        (thing,) = json.loads(fields["boxes.json"])["objects"]
        assert thing["name"] == "spot"
        for found in (extent(labels == 255), thing["bbox"]):
            assert np.abs(np.array(found) - seen).max() <= 1
        x, y, visible = thing["keypoints"]
        assert visible == 2
        assert max(abs(x - (seen[0] + seen[2]) / 2), abs(y - (seen[1] + seen[3]) / 2)) <= 1
        assert fields["txt"] == b"a spot"
        assert {"png", "json", "seg.png", "txt", "boxes.json"} == fields.keys()


def test_where_nothing_changes_files_stay_byte_for_byte(tmp_path: Path) -> None:
    source = make_sample(tmp_path / "in")
    pack(source, tmp_path / "out.lmdb", workers=1, **SIDES)
    fields = one(tmp_path / "out.lmdb")
    for name, file in (("png", "a.png"), ("seg.png", "a.seg.png"), ("boxes.json", "a.json")):
        assert fields[name] == (source / file).read_bytes()


def test_masks_of_a_kept_image_that_a_reader_will_turn_are_upright(tmp_path: Path) -> None:
    pack(make_sample(tmp_path / "in", 6, kind="jpg"), tmp_path / "out.lmdb", workers=1, **SIDES)
    fields = one(tmp_path / "out.lmdb")
    assert fields["jpg"] == (tmp_path / "in" / "a.jpg").read_bytes()
    assert opened(fields["seg.png"]).shape == (HEIGHT, WIDTH)
    assert boxed(fields["boxes.json"]) == list(SPOT)


def test_annotations_made_on_upright_images(tmp_path: Path) -> None:
    make_sample(tmp_path / "upright")
    for orientation in (3, 6):
        source = make_sample(tmp_path / "in", orientation, str(orientation))
        for name in ("seg.png", "json"):
            (source / f"{orientation}.{name}").write_bytes((tmp_path / "upright" / f"a.{name}").read_bytes())
    pack(source, tmp_path / "out.lmdb", upright_annotations=True, format="png", workers=1, **SIDES)
    for fields in records(tmp_path / "out.lmdb"):
        assert extent(opened(fields["seg.png"]) == 255) == boxed(fields["boxes.json"]) == list(SPOT)


def test_values_of_masks_survive(tmp_path: Path) -> None:
    masks, rng = {}, np.random.default_rng(0)
    for name, dtype in (("a", np.uint16), ("b", np.uint8), ("c", bool)):
        folder = make_sample(tmp_path / "in", name=name)
        most = 2 if dtype is bool else np.iinfo(dtype).max
        masks[name] = rng.integers(0, most, (HEIGHT, WIDTH)).astype(dtype)
        Image.fromarray(masks[name]).save(folder / f"{name}.depth.tif")
    pack(folder, tmp_path / "out.lmdb", resize=20, fields=["seg.png", "depth.tif"], mode="exact", workers=1)
    for values, fields in zip(masks.values(), records(tmp_path / "out.lmdb"), strict=True):
        found = opened(fields["depth.png"])
        assert found.dtype == values.dtype
        assert (found == values[1::2, 1::3]).all()


def test_fill_beside_padded_images(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "resize": 60,
        "mode": "pad",
        "pad_color": "114,114,114",
        "mask_fill": 255,
        "format": "png",
    }
    pack(make_sample(tmp_path / "in"), tmp_path / "out.lmdb", workers=1, **SIDES, **dict[str, Any](options))
    image, labels = (opened(one(tmp_path / "out.lmdb")[name]) for name in ("png", "seg.png"))
    padding = np.ones((60, 60), bool)
    padding[10:50] = False
    assert ((image == 114).all(axis=2) == padding).all()
    assert (labels[padding] == 255).all()
    assert set(np.unique(labels[~padding])) == {3, 255}


def annotated(tmp_path: Path, values: list[Any], **options: Any) -> list[Any]:
    """The JSON beside each image of 100 x 50 after a crop to its centre square, which begins at x = 25."""
    (tmp_path / "in").mkdir()
    for number, value in enumerate(values):
        Image.new("RGB", (100, 50)).save(tmp_path / "in" / f"{number}.png")
        (tmp_path / "in" / f"{number}.ann.json").write_text(json.dumps(value))
    pack(tmp_path / "in", tmp_path / "out.lmdb", fields="ann.json", workers=1, resize=50, mode="crop", **options)
    return [json.loads(fields["ann.json"]) for fields in records(tmp_path / "out.lmdb")]


CUT: dict[str, list[tuple[Any, Any]]] = {  # what -> pairs of a value and what is left of it
    "xyxy": [
        ([[0, 0, 60, 50], [0, 0, 20, 20]], [[0, 0, 35, 50]]),
        (
            {"boxes": [[0, 0, 9, 9], [30, 0, 40, 9]], "labels": [7, 8], "n": 2},
            {"boxes": [[5, 0, 15, 9]], "labels": [8], "n": 2},
        ),
        ([{"box": [1, 1, 2, 2]}, {"box": [50, 0, 60, 5], "id": 4}], [{"box": [25, 0, 35, 5], "id": 4}]),
        ({"objects": []}, {"objects": []}),
        ([], []),
    ],
    "xywh": [
        ([[0, 0, 60, 50], [30, 10, 10, 10]], [[0, 0, 35, 50], [5, 10, 10, 10]]),
        (
            {"annotations": [{"bbox": [50, 0, 2, 2], "segmentation": [[50, 0, 52, 0, 52, 2]]}]},
            {"annotations": [{"bbox": [25, 0, 2, 2], "segmentation": [[25, 0, 27, 0, 27, 2]]}]},
        ),
    ],
    "keypoints": [
        ([[50, 10], [5, 10]], [[25, 10], [-20, 10]]),
        ([[50, 10, 2], [5, 10, 2], [0, 0, 0]], [[25, 10, 2], [0, 0, 0], [0, 0, 0]]),
        ({"keypoints": [50, 10, 1, 5, 10, 2]}, {"keypoints": [25, 10, 1, 0, 0, 0]}),
        ([{"keypoints": [[50, 10]]}, {"points": [[60, 0]]}], [{"keypoints": [[25, 10]]}, {"points": [[35, 0]]}]),
    ],
}


@pytest.mark.parametrize("kind", CUT)
def test_annotations_that_a_crop_cuts(tmp_path: Path, kind: str) -> None:
    options = {"keypoints": "ann.json"} if kind == "keypoints" else {"boxes": "ann.json", "box_format": kind}
    values, expected = zip(*CUT[kind], strict=True)
    assert annotated(tmp_path, list(values), **options) == list(expected)


FAULTS: list[tuple[str, bytes | None, str]] = [
    ("json", b'{"bndbox": {"xmin": 3}}', "boxes.json: no list of numbers and no member boxes"),
    ("json", b'{"boxes": [[1, 2, 3]]}', "boxes.json: a box has four numbers"),
    ("json", b"no json", "boxes.json: not JSON"),
    ("json", b'[{"bbox": [1,2,3,4], "segmentation": {"counts": "x"}}]', "run-length"),
    ("seg.png", b"no image", "seg.png: not an image"),
    ("seg.png", None, "seg.png: its file cannot be read"),
    ("seg.png", b"small", "the mask has 30x20 pixels, its image 60x40"),
]


def test_what_cannot_follow_fails_with_its_field(tmp_path: Path) -> None:
    source = make_sample(tmp_path / "in", name="whole")
    for number, (suffix, content, _) in enumerate(FAULTS):
        file = make_sample(source, name=str(number)) / f"{number}.{suffix}"
        if content is None:
            file.unlink()
            file.symlink_to(tmp_path / "nowhere")
        elif content == b"small":
            Image.new("L", (30, 20)).save(file)
        else:
            file.write_bytes(content)
    report = pack(source, tmp_path / "out.lmdb", max_errors=len(FAULTS), **SIDES)
    assert (report.packed, report.failed) == (1, len(FAULTS))
    errors = (tmp_path / "out.lmdb.errors.jsonl").read_text().replace('\\"', '"').splitlines()
    for number, (_, _, words) in enumerate(FAULTS):
        assert any(f"{number}.png" in line and words in line for line in errors), words


def test_without_fields_a_folder_means_what_it_did(tmp_path: Path) -> None:
    pack(make_sample(tmp_path / "in"), tmp_path / "out.lmdb")
    with LmdbReader(tmp_path / "out.lmdb") as reader:
        assert len(reader) == 2, "a.png and a.seg.png are two images"


def test_missing_and_lone_files_cause_warnings(tmp_path: Path) -> None:
    source = make_sample(make_sample(tmp_path / "in" / "x"), name="b").parent
    (source / "x" / "a.txt").unlink()
    (source / "x" / "c.txt").write_text("alone")
    (source / "x" / "b.txt").rename(source / "x" / "b.TXT")
    with pytest.warns(UserWarning, match="file") as caught:
        pack(source, tmp_path / "out.lmdb", fields="txt,seg.png")
    warnings = "\n".join(str(each.message) for each in caught)
    assert "images without a file '.txt': 1 of 2" in warnings
    assert "files '.txt' without an image left out: 1 (x/c)" in warnings
    with LmdbReader(tmp_path / "out.lmdb") as reader:
        assert ["txt" in reader.record(i).fields for i in range(2)] == [False, True]


def test_names_of_fields(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    Image.new("RGB", (9, 6)).save(source / "a.jpg")
    Image.new("L", (9, 6)).save(source / "a.png")
    Image.new("L", (9, 6)).save(source / "a_edge.gif")
    (source / "a.json").write_text("{}")
    pack(source, tmp_path / "out.lmdb", workers=1, fields="png,json,_edge.gif")
    assert one(tmp_path / "out.lmdb").keys() == {"jpg", "json", "mask.png", "meta.json", "edge.png"}
    for wrong in ("cls", "txt=json", "seg.png,seg.tif", "a/b", "txt,txt"):
        with pytest.raises(OptionError, match="fields"):
            PackOptions(fields=wrong)


def test_columns_of_a_manifest(tmp_path: Path) -> None:
    make_sample(tmp_path / "images")
    rows = [
        {"path": "images/a.png", "mask": "images/a.seg.png", "text": "images/a.txt", "boxes": [list(SPOT)], "n": 3},
        {"path": "images/a.png"},
    ]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    columns: dict[str, Any] = {"mask_column": "mask", "file_column": "text", "boxes": "boxes.json"}
    pack(tmp_path / "list.jsonl", tmp_path / "out.lmdb", resize=20, **columns)
    with LmdbReader(tmp_path / "out.lmdb") as reader:
        full, bare = (reader.record(row).fields for row in range(2))
    assert Image.open(io.BytesIO(full["mask.png"])).size == (30, 20)
    assert (full["text.txt"], full["n.json"]) == (b"a spot", b"3")
    assert json.loads(full["boxes.json"]) == [[18, 4, 24, 10]]
    assert bare.keys() == {"jpg", "json"}
    with pytest.raises(SourceError, match="no column 'horse'"):
        pack(tmp_path / "list.jsonl", tmp_path / "b.lmdb", mask_column="horse")
    with pytest.raises(OptionError, match="a manifest's"):
        pack(tmp_path / "images", tmp_path / "b.lmdb", mask_column="mask")


def test_filters_leave_holes_that_are_no_errors(tmp_path: Path) -> None:
    for number, size in enumerate([(80, 64), (63, 90), (400, 90), (256, 64), (257, 64)]):
        (tmp_path / "in").mkdir(exist_ok=True)
        Image.new("RGB", size).save(tmp_path / "in" / f"{number}.png")
    filters: dict[str, Any] = {"min_size": 64, "max_aspect": 4}
    dry = pack(tmp_path / "in", tmp_path / "out.lmdb", dry_run=True, **filters)
    assert (dry.left_out, dry.failed) == (3, 0)
    report = pack(tmp_path / "in", tmp_path / "out.lmdb", max_errors=0, **filters)
    assert (report.images, report.packed, report.left_out, report.failed, report.status) == (5, 2, 3, 0, 0)
    assert json.loads(report.to_json())["left_out"] == 3
    with LmdbReader(tmp_path / "out.lmdb") as reader:
        assert [record.key for record in reader] == ["00000000", "00000003"]
        assert reader.manifest.recipe["max_aspect"] == 4
    with pytest.raises(SourceError, match="admit none"):
        pack(tmp_path / "in", tmp_path / "none.lmdb", min_size=1000)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"upright_annotations": True}, "upright_annotations is for masks, boxes and keypoints: there is no field"),
        ({"fields": "seg.png", "boxes": "box.json"}, r"boxes 'box.json' is no field: found seg.png"),
        ({"label_column": "x"}, "columns are a manifest's, found the folder .* and the column 'x'"),
    ],
)
def test_options_that_would_do_nothing_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        pack(make_sample(tmp_path / "in"), tmp_path / "out.lmdb", workers=1, **options)


def test_boxes_that_stay_as_they_are_cause_a_warning(tmp_path: Path) -> None:
    source = make_sample(tmp_path / "in")
    (source / "a.boxes.json").write_text("[[1, 2, 3, 4]]")
    given: dict[str, Any] = {"fields": "seg.png,boxes.json", "workers": 1}
    with pytest.warns(UserWarning, match=r"field boxes\.json is stored as it is, .*resized: as boxes= or keypoints="):
        pack(source, tmp_path / "out.lmdb", resize=20, **given)
    pack(source, tmp_path / "moved.lmdb", resize=20, boxes="boxes.json", **given)  # warnings are errors
    pack(source, tmp_path / "kept.lmdb", **given)


@pytest.mark.parametrize("resize", [None, 20])
def test_masks_in_a_column_that_is_not_named(tmp_path: Path, resize: int | None) -> None:
    """Their paths would be stored as if they were the masks."""
    make_sample(tmp_path)
    (tmp_path / "list.csv").write_text("path,seg.png\na.png,a.seg.png\n")
    with pytest.raises(OptionError, match=r"the column of seg\.png holds values, .* as mask_column"):
        pack(tmp_path / "list.csv", tmp_path / "out.lmdb", resize=resize, workers=1)
    assert pack(tmp_path / "list.csv", tmp_path / "out.lmdb", resize=resize, mask_column="seg.png", workers=1).packed
