"""Scanning folders: torchvision's order, class numbers, splits, metadata files, left-out files, errors."""

import json
import os
import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from listings import make, numbers, paths

from iofast.errors import SourceError
from iofast.source import SourceOptions, arrays
from iofast.source.folder import FolderReader
from iofast.source.listing import Listing
from iofast.source.scan import scan

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def image_folder(root: Path) -> tuple[list[str], list[tuple[str, int]]]:
    """ImageFolder's order, as torchvision documents it: sorted class folders, each walked in sorted order."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = []
    for label, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
            images = [file for file in sorted(files) if file.lower().endswith(EXTENSIONS)]
            samples += [(os.path.relpath(os.path.join(folder, file), root), label) for file in images]
    return classes, samples


def test_class_folders_are_listed_in_the_order_of_image_folder(tmp_path: Path) -> None:
    names = ["b/2.jpg", "b/10.JPEG", "b/x/1.png", "b/x-y/1.png", "b/x/z/1.webp", "b/x.d/1.bmp", "b/X/1.tif", "b/n.txt"]
    names += ["a/é.jpg", "a/z.jpg", "a/x.jpg/inside.jpg", "B/1.pgm", "c-d/1.ppm", "c/1.jpeg", "c/u/deep/er/1.tiff"]
    make(tmp_path, [*names, b"a/\xff.jpg", b"a/\xf0\x9f\x90\x88.jpg", b"a/\xe9/1.jpg"])
    (tmp_path / "linked").symlink_to(tmp_path / "c")
    (tmp_path / "b" / "gone.jpg").symlink_to("nowhere")
    classes, samples = image_folder(tmp_path)
    source = scan(tmp_path)
    assert source.kind == "classes"
    assert source.classes == tuple(classes)
    assert list(zip(paths(source), numbers(source), strict=True)) == samples
    assert source.splits == (("all", 0, len(samples)),)
    assert source.listed_labels.dtype == np.int32
    assert source.file(0) == os.path.join(os.fsencode(tmp_path), source.path(0))
    assert [source.label(index) for index in range(len(source))] == [label for _, label in samples]
    with pytest.raises(IndexError, match="image 99 of"):
        source.path(99)


KEPT = "(their numbers are kept)"
UPPER = "taken as classes: splits are written in lower case"
LAYOUTS: list[tuple[str, str | None, str, list[int], str]] = [  # files, classes, images, labels, warning
    ("a1/x.jpg a2/x.jpg", "a1 a2", "a1/x.jpg a2/x.jpg", [0, 1], ""),  # equal in both class orders
    ("2.jpg 10.jpg x.avif y.GIF", None, "10.jpg 2.jpg x.avif y.GIF", [-1] * 4, ""),
    ("a/1.jpg b/r.txt c/1.jpg", "a b c", "a/1.jpg c/1.jpg", [0, 2], f"class folders without images: b {KEPT}"),
    ("a/1.jpg b.jpg c.jpg", "a", "a/1.jpg", [0], "images in the root beside class folders left out: 2"),
    ("1.jpg b/1.xml", None, "1.jpg", [-1], "images in the root taken as a flat folder: no image in subfolders b"),
    ("Train/1.jpg b/1.jpg", "Train b", "Train/1.jpg b/1.jpg", [0, 1], f"folders Train {UPPER}"),
    ("train/a/1.jpg val/a/r.txt", "a", "train/a/1.jpg", [0], "splits without images left out: val"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(tmp_path: Path, layout: tuple[str, str | None, str, list[int], str]) -> None:
    files, classes, listed, labels, warning = layout
    source = scan(make(tmp_path, files.split()))
    assert source.kind == ("flat" if classes is None else "classes")
    assert source.classes == (None if classes is None else tuple(classes.split()))
    assert (paths(source), numbers(source)) == (listed.split(), labels)
    assert warning in source.warnings if warning else not source.warnings


def test_nested_splits_share_the_union_of_their_classes(tmp_path: Path) -> None:
    make(tmp_path, ["val/c/1.jpg", "train/b/1.jpg", "train/a/1.jpg", "test/9.jpg", "valid/a/1.jpg", "loose.jpg"])
    source = scan(tmp_path)
    assert source.classes == ("a", "b", "c")
    assert paths(source) == ["train/a/1.jpg", "train/b/1.jpg", "val/c/1.jpg", "valid/a/1.jpg", "test/9.jpg"]
    assert numbers(source) == [0, 1, 2, 0, -1]
    assert source.splits == (("train", 0, 2), ("val", 2, 3), ("valid", 3, 4), ("test", 4, 5))
    assert "images beside the splits test, train, val, valid left out: 1" in source.warnings
    assert "classes that 'train' lacks: c" in source.warnings


def test_folders_without_images_beside_splits_do_not_count(tmp_path: Path) -> None:
    make(tmp_path, ["train/a/1.jpg", "val/a/2.jpg", "meta/readme.txt", "meta/deep/x.csv", "empty/.hidden.jpg"])
    source = scan(tmp_path)
    assert source.classes == ("a",)
    assert source.splits == (("train", 0, 1), ("val", 1, 2))
    assert source.warnings[0] == "folders without images beside the splits train, val left out: empty, meta"
    assert "files that are no images left out: 1 .csv (meta/deep/x.csv), 1 .txt (meta/readme.txt)" in source.notes
    assert len([line for line in source.notes if line.startswith("hidden image files")]) == 1
    make(tmp_path, ["meta/deep/1.jpg"])
    assert b"meta/deep" in list(source.watched.paths)


def test_one_class_may_be_called_like_a_split(tmp_path: Path) -> None:
    source = scan(make(tmp_path, ["bus/1.jpg", "car/1.jpg", "train/1.jpg", "val/readme"]))
    assert source.classes == ("bus", "car", "train", "val")
    assert source.warnings[:2] == (
        "folder train taken as a class, not as a split: images are in bus, car beside it, too",
        "class folders without images: val (their numbers are kept)",
    )


def test_hidden_files_and_folders_are_skipped_and_counted(tmp_path: Path) -> None:
    junk = ["__MACOSX/a/._1.jpg", "@eaDir/1.jpg", "a/@eaDir/1.jpg/thumb.jpg", "$RECYCLE.BIN/1.jpg", "lost+found/1.jpg"]
    make(tmp_path, ["a/1.jpg", "a/._1.jpg", "a/.2.png", "a/.DS_Store", ".git/x.jpg", *junk])
    source = scan(tmp_path)
    assert source.classes == ("a",)
    assert paths(source) == ["a/1.jpg"]
    assert "hidden image files skipped (names that begin with a dot): 2" in source.notes
    folders = "$RECYCLE.BIN, .git, @eaDir, __MACOSX, a/@eaDir and 1 more"
    assert f"hidden folders and those of the system skipped: {folders}" in source.notes
    assert not source.warnings


def test_links_that_lead_upwards_are_skipped(tmp_path: Path) -> None:
    make(tmp_path, ["a/1.jpg", "b/1.jpg"])
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "self").symlink_to(".")
    (tmp_path / "a" / "knot").symlink_to("knot")
    for one, other in ("ab", "ba"):  # which end
        (tmp_path / one / "to").symlink_to(tmp_path / other)
    source = scan(tmp_path)
    assert paths(source) == ["a/1.jpg", "a/to/1.jpg", "b/1.jpg", "b/to/1.jpg"]
    (skipped,) = source.warnings
    assert skipped == "links to a folder above them skipped: a/self, a/to/to, a/up, b/to/self, b/to/to and 1 more"
    assert source.notes == ("files that are no images left out: 2 without a suffix (a/knot, b/to/knot)",)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no images in .*: looked for .jpg .* found an empty folder"),
        (["a.txt", "b.py"], r"found files that are no images: 1 \.py \(b\.py\), 1 \.txt \(a\.txt\)"),
        (["a/readme"], r"found files that are no images: 1 without a suffix \(a/readme\) and 1 subfolders"),
        (["train/a/x.txt", "val/a/x.txt"], "no images in"),
        (["x-0.tar", "x-1.tar"], r"2 \.tar \(x-0\.tar, x-1\.tar\); a pattern names shards: '/.*/\*\.tar'$"),
        (["train/x-0.tar"], r"and 1 subfolders; a pattern names shards: '/.*/train/\*\.tar'$"),
        (["v-00000-of-00002", "v-00001-of-00002"], r"; a pattern names shards: '/.*/v-\*-of-\*'$"),
        (["a.tfrecord-00000-of-00001"], r"; a pattern names shards: '/.*/a\.tfrecord-\*-of-\*'$"),
        (["b/x.lmdb"], r"; name the container itself: /.*/b/x\.lmdb$"),
        (["._a.jpg"], "found 1 hidden images"),
        (
            ["train/a/1.jpg", "val/a/2.jpg", "extra/3.jpg", "meta/x.txt"],
            r"only splits or only classes, found the splits train, val, and extra \(.*manifest",
        ),
    ],
)
def test_a_folder_without_images_is_an_error(tmp_path: Path, files: list[str], message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        scan(make(tmp_path, files))
    assert "\n" not in str(caught.value)


def test_missing_root_and_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"source not found: .*gone"):
        scan(tmp_path / "gone")
    (tmp_path / "x.zip").write_bytes(b"")
    with pytest.raises(
        SourceError, match=r"neither .* nor a manifest \(\.csv, \.tsv, \.txt, \.jsonl, \.parquet\); unpack"
    ):
        scan(tmp_path / "x.zip")
    for name in ("train.tar", "x-{000..003}.tar", "x.lmdb", "x.tfrecord"):
        with pytest.raises(SourceError, match=rf"{re.escape(name)} is a container, expected a .*open_reader"):
            scan(tmp_path / name)


def test_unreadable_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, ["a/1.jpg", "b/1.jpg"])
    real = os.scandir

    def refusing(path: str) -> object:
        if path.endswith("b"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(SourceError, match=r"cannot list folder .*/b: Permission denied"):
        scan(tmp_path)


def test_shuffle_permutes_inside_each_split_and_never_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [f"{split}/{name}" for split in ("train", "val") for name in "ab"]
    source = scan(make(tmp_path, [f"{folder}/{number}.jpg" for folder in folders for number in range(20)]))
    shuffled = source.shuffled(7)
    assert shuffled.splits == source.splits
    for _, start, stop in source.splits:
        assert sorted(paths(shuffled)[start:stop]) == sorted(paths(source)[start:stop])
        assert paths(shuffled)[start:stop] != paths(source)[start:stop]
    by_path = dict(zip(paths(source), numbers(source), strict=True))
    assert dict(zip(paths(shuffled), numbers(shuffled), strict=True)) == by_path
    assert paths(shuffled) == paths(source.shuffled(7)) != paths(source.shuffled(8))
    first = [path.removeprefix("train/") for path in paths(shuffled)[:4]]
    assert first == ["a/10.jpg", "a/14.jpg", "b/10.jpg", "b/17.jpg"]  # golden: packed sets depend on it
    monkeypatch.setattr(arrays, "STEP", 7)
    assert paths(source.shuffled(7)) == paths(shuffled)
    backwards = np.arange(len(source))[::-1].copy()
    assert paths(replace(source, order=backwards).shuffled(7))[:40] != paths(shuffled)[:40]


def test_fingerprint_follows_paths_labels_and_order_alone(tmp_path: Path) -> None:
    files = [f"{name}/{number}.jpg" for name in "ab" for number in range(9)]
    one = scan(make(tmp_path / "one", files))
    same = scan(make(tmp_path / "two", files))
    other = [
        scan(make(tmp_path / "three", [*files[:-1], "b/x.jpg"])),
        scan(make(tmp_path / "four", [file.replace("b/", "c/") for file in files])),
        scan(make(tmp_path / "five", [*files, "b/x.jpg"])),
        one.shuffled(1),
        one.shuffled(2),
    ]
    assert one.fingerprint() == same.fingerprint()
    assert one.fingerprint().startswith("sha256:")
    assert len({source.fingerprint() for source in [one, *other]}) == 6
    assert pickle.loads(pickle.dumps(one)).fingerprint() == one.fingerprint()


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    """Write a metadata file in the format of its suffix, and the image files that its rows name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]))
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        pytest.importorskip("pyarrow")
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist(rows), path)
    for row in rows:
        add(path.parent / str(row["file_name"]))
    return path


def add(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def labels(source: Listing) -> dict[str, int]:
    return {source.path(index).decode(): source.label(index) for index in range(len(source))}


ROWS: list[dict[str, object]] = [
    {"file_name": "b/2.jpg", "label": "dog", "text": "x"},
    {"file_name": "1.jpg", "label": "cat", "text": "y"},
]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("places", [("",), ("test/", "train/")])
def test_labels_and_fields_come_from_metadata(tmp_path: Path, suffix: str, places: tuple[str, ...]) -> None:
    for place in places:
        write(tmp_path / f"{place}metadata{suffix}", ROWS)
        add(tmp_path / place / "3.jpg")
    source = scan(tmp_path)
    assert (source.root, source.classes, source.fields) == (tmp_path, ("cat", "dog"), ("text.txt",))
    assert labels(source) == {
        f"{place}{name}": label for place in places for name, label in (("b/2.jpg", 1), ("1.jpg", 0), ("3.jpg", -1))
    }
    assert {name for name, _, _ in source.splits} == {place[:-1] or "all" for place in places}
    assert any(line.endswith(f": {len(places)}") for line in source.warnings if "without a row" in line)
    reader = FolderReader(tmp_path)
    assert (reader.source.fingerprint(), reader.source.root) == (source.fingerprint(), tmp_path)
    write(tmp_path / f"{places[-1]}metadata{suffix}", [*ROWS, {**ROWS[0], "file_name": "3.jpg"}])
    assert labels(FolderReader(tmp_path).source)[f"{places[-1]}3.jpg"] == 1  # not from the cache


def test_metadata_of_the_root_describes_splits(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"file_name": "./train/1.jpg", "label": 1}, {"file_name": "val/1.jpg", "label": 0}]
    write(tmp_path / "metadata.csv", rows)
    source = scan(tmp_path)
    assert (labels(source), source.splits) == (
        {"train/1.jpg": 1, "val/1.jpg": 0},
        (("train", 0, 1), ("val", 1, 2)),
    )


@pytest.mark.parametrize(
    ("name", "row", "classes"),
    [
        ("metadata.csv", {"file_name": "cat/1.jpg", "text": "class folders are better than no label"}, ("cat", "dog")),
        ("metadata.csv", {"licence": "free", "file_name": "cat/1.jpg", "Label": "lion"}, ("lion",)),
        ("cat/metadata.csv", {"file_name": "1.jpg", "label": "lion"}, ("cat", "dog")),
    ],
)
def test_class_folders_beside_metadata(
    tmp_path: Path, name: str, row: dict[str, object], classes: tuple[str, ...]
) -> None:
    write(tmp_path / name, [row])
    add(tmp_path / "dog/1.jpg")
    source = scan(tmp_path)
    assert source.classes == classes
    line = f"metadata files not read (pack one itself to use it as a list): {name}"
    assert (line in source.notes) == (classes != ("lion",))


def test_options_and_errors_are_those_of_lists(tmp_path: Path) -> None:
    path = write(tmp_path / "train/metadata.csv", [{"file_name": "1.jpg", "kind": "cat", "label": "x"}])
    assert scan(tmp_path, SourceOptions(label_column="kind")).classes == ("cat",)
    path.write_text("file_name,label\n1.jpg\n")
    with pytest.raises(SourceError, match=r"train/metadata\.csv, line 2: expected 2 columns"):
        scan(tmp_path)
    path.write_text("file_name,label\n,2\n")
    with pytest.raises(SourceError, match=r"train/metadata\.csv, line 2: the path is empty|the path is not text"):
        scan(tmp_path)
