"""ImageNet (ILSVRC 2012): folders or the official tar files; classes are the synsets, sorted, as every model expects.

    SOURCE/train/n01440764/*.JPEG, or SOURCE/Data/CLS-LOC/train/…            (Kaggle's layout)
    SOURCE/val/n01440764/*.JPEG, or SOURCE/val/*.JPEG with a list of labels
    SOURCE/ILSVRC2012_img_train.tar (a tar of tars), ILSVRC2012_img_val.tar

Labels of validation images without class folders come from --val-labels: Kaggle's LOC_val_solution.csv (found by
itself), lines `ILSVRC2012_val_00000001.JPEG 65` as Caffe has them, counted in sorted synsets, or the development kit's
ILSVRC2012_validation_ground_truth.txt. The last counts in the kit's own order, which is not the sorted one: give that
order with --synsets, one synset a line (it is in the kit's meta.mat, a MATLAB file).

Folders go through `pack`. Tar files are stored as they are, without unpacking them to the disk: the PNG that is called
JPEG becomes the field `png`, and CMYK stays, which iofast reads.
"""

from __future__ import annotations

import csv
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iofast import open_writer
from iofast.errors import SourceError
from iofast.packing import PackReport
from tools.recipes.listed import Row, finish, image_record, images_in, pack_listed, pack_options, parser

TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
KAGGLE = "LOC_val_solution.csv"


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__, pixels=True)
    options.add_argument("--val-labels", type=Path, metavar="FILE")
    options.add_argument("--synsets", type=Path, metavar="FILE", help="the order that a ground truth list counts in")
    args = options.parse_args(argv)
    if (args.source / TRAIN_TAR).is_file():
        given = [name for name, value in pack_options(args).items() if value != options.get_default(name)]
        if changing := [f"--{name.replace('_', '-')}" for name in given if name != "overwrite"]:
            options.error(
                f"tar files are stored as they are, without {', '.join(changing)}: unpack them, or pack DST anew"
            )
        return finish(
            lambda: pack_tars(args.source, args.target, args.val_labels, args.synsets, overwrite=args.overwrite)
        )
    return finish(lambda: pack_folders(args.source, args.target, args.val_labels, args.synsets, **pack_options(args)))


def pack_folders(source: Path, target: Path, labels: Path | None, synsets: Path | None, **options: Any) -> PackReport:
    root = source / "Data" / "CLS-LOC" if (source / "Data" / "CLS-LOC").is_dir() else source
    rows = list(_train_rows(root / "train"))
    classes = sorted({row["label"] for row in rows})
    numbers = {name: number for number, name in enumerate(classes)}
    rows = [{**row, "label": numbers[row["label"]]} for row in rows]
    if (root / "val").is_dir():
        known = val_labels(source, labels, synsets, classes)
        rows += list(_val_rows(root / "val", known, numbers))
    return pack_listed(rows, root, target, classes, **options)


def _train_rows(train: Path) -> Iterator[Row]:
    for path in images_in(train):
        yield {"path": f"train/{path.parent.name}/{path.name}", "label": path.parent.name, "split": "train"}


def _val_rows(val: Path, known: dict[str, int], numbers: dict[str, int]) -> Iterator[Row]:
    for path in images_in(val):
        inside = path.parent != val
        label = numbers.get(path.parent.name) if inside else known.get(path.stem)
        if label is None:
            raise SourceError(f"no label for {path}: give --val-labels, or put it into its synset's folder")
        yield {"path": path.relative_to(val.parent).as_posix(), "label": label, "split": "val"}


def val_labels(source: Path, file: Path | None, synsets: Path | None, classes: list[str]) -> dict[str, int]:
    """The number of the class of each validation image, by its name without extension; empty without a list."""
    if file is None:
        file = next((place for place in (source / KAGGLE, source.parent / KAGGLE) if place.is_file()), None)
    if file is None:
        return {}
    numbers = {name: number for number, name in enumerate(classes)}
    lines = [line.split() for line in file.read_text().splitlines() if line.strip()]
    if file.suffix == ".csv":
        with file.open(newline="") as opened:
            said = {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(opened)}
        unknown = sorted(set(said.values()) - set(numbers))
        if unknown:
            raise SourceError(f"{file} names synsets that are not among the training folders: {', '.join(unknown[:5])}")
        return {name: numbers[synset] for name, synset in said.items()}
    if all(len(words) == 2 for words in lines):
        return {Path(name).stem: int(label) for name, label in lines}
    if synsets is None:
        raise SourceError(f"{file} counts in the development kit's order: give --synsets, a file of its synsets")
    order = synsets.read_text().split()
    return {f"ILSVRC2012_val_{row:08d}": numbers[order[int(words[0]) - 1]] for row, words in enumerate(lines, 1)}


def pack_tars(source: Path, target: Path, labels: Path | None, synsets: Path | None, *, overwrite: bool) -> str:
    packed = 0
    with _opened(source / TRAIN_TAR) as train:
        members = sorted((member for member in train if member.name.endswith(".tar")), key=lambda one: one.name)
        classes = [Path(member.name).stem for member in members]
        with open_writer(target, classes=classes, overwrite=overwrite) as writer:
            for number, member in enumerate(members):
                inner = train.extractfile(member)
                assert inner is not None  # a regular file
                with tarfile.open(fileobj=inner) as images:
                    for name, data in _images(images):
                        path = {"path": f"train/{classes[number]}/{name}"}
                        packed = 1 + writer.write({**image_record(data), "cls": number, "json": path}, "train")
            if (source / VAL_TAR).is_file():
                known = val_labels(source, labels, synsets, classes)
                with _opened(source / VAL_TAR) as val:
                    for name, data in _images(val):
                        if Path(name).stem not in known:
                            raise SourceError(f"no label for {name} of {VAL_TAR}: give --val-labels")
                        cls = known[Path(name).stem]
                        said = {"cls": cls, "json": {"path": f"val/{name}"}}
                        packed = 1 + writer.write({**image_record(data), **said}, "val")
    return f"packed {packed:,} images into {target}"


def _opened(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path)
    except tarfile.TarError:
        raise SourceError(f"{path} is not a readable tar file") from None


def _images(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in sorted((each for each in archive if each.isfile()), key=lambda one: one.name):
        opened = archive.extractfile(member)
        assert opened is not None  # a regular file
        yield Path(member.name).name, opened.read()


if __name__ == "__main__":
    sys.exit(main())
