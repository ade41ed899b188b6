"""The recipes, each on a small synthetic copy of the layout that it is for."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kernel_images import jpeg, photo, save
from PIL import Image

from iofast import FastDataset, open_reader
from iofast.errors import SourceError
from tools.recipes import ade20k, captions, cifar, coco, hf_imagefolder, imagenet

SYNSETS = ("n01440764", "n01443537", "n02105855")


def picture(number: int, width: int = 60, height: int = 40) -> bytes:
    return jpeg(photo(width, height, number), "RGB")


def png(array: np.ndarray) -> bytes:
    return save(Image.fromarray(array), "png")


def put(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def imagenet_folders(root: Path, *, val_folders: bool) -> None:
    for label, synset in enumerate(SYNSETS):
        for number in range(3):
            put(root / "train" / synset / f"{synset}_{number}.JPEG", picture(label * 10 + number))
        place = f"{synset}/" if val_folders else ""
        put(root / "val" / f"{place}ILSVRC2012_val_{3 - label:08d}.JPEG", picture(50 + label))


def check_imagenet(target: Path) -> None:
    """Three classes of three; of the validation images 1, 2, 3 the classes are 2, 1, 0."""
    train, val = (FastDataset(target, split=split) for split in ("train", "val"))
    assert train.classes == val.classes == list(SYNSETS)
    assert train.targets == [0] * 3 + [1] * 3 + [2] * 3
    said = [json.loads(bytes(val.reader.view(9 + i, "json")))["path"].rpartition("/")[2][:-5] for i in range(3)]
    labels = dict(zip(said, val.targets, strict=True))
    assert labels == {f"ILSVRC2012_val_{3 - label:08d}": label for label in range(3)}


def refused(
    capsys: pytest.CaptureFixture[str], main: Callable[[list[str]], int], arguments: list[str], reason: str
) -> None:
    """Check that the command ends with one line that gives the reason."""
    assert main(arguments) == 1
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ")
    assert "\n" not in said
    assert re.search(reason, said), said


def test_imagenet_class_folders(tmp_path: Path) -> None:
    imagenet_folders(tmp_path / "set", val_folders=True)
    assert imagenet.main([str(tmp_path / "set"), str(tmp_path / "out.lmdb"), "--resize", "32", "--workers", "1"]) == 0
    check_imagenet(tmp_path / "out.lmdb")
    assert FastDataset(tmp_path / "out.lmdb", split="val")[0][0].size == (48, 32)


def test_imagenet_as_kaggle_has_it(tmp_path: Path) -> None:
    root = tmp_path / "ILSVRC"
    imagenet_folders(root / "Data" / "CLS-LOC", val_folders=False)
    lines = [
        f"ILSVRC2012_val_{3 - label:08d},{synset} 1 2 3 4 {synset} 5 6 7 8\n" for label, synset in enumerate(SYNSETS)
    ]
    put(tmp_path / "LOC_val_solution.csv", "ImageId,PredictionString\n" + "".join(lines))
    imagenet.main([str(root), str(tmp_path / "out.lmdb"), "--workers", "1"])
    check_imagenet(tmp_path / "out.lmdb")
    with open_reader(tmp_path / "out.lmdb") as reader:
        path = json.loads(bytes(reader.view(0, "json")))["path"]
    assert path == "train/n01440764/n01440764_0.JPEG"  # nothing of this machine


def test_imagenet_tars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The official files; a PNG among the JPEGs, the development kit's list and its order of synsets."""
    root = tmp_path / "set"
    root.mkdir()
    with tarfile.open(root / imagenet.TRAIN_TAR, "w") as train:
        for label, synset in enumerate(SYNSETS):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as own:
                for number in range(3):
                    odd = (label, number) == (2, 0)
                    add(own, f"{synset}_{number}.JPEG", png(photo(20, 20, 1)) if odd else picture(label * 10 + number))
            add(train, f"{synset}.tar", inner.getvalue())
    with tarfile.open(root / imagenet.VAL_TAR, "w") as val:
        for label in range(3):
            add(val, f"ILSVRC2012_val_{3 - label:08d}.JPEG", picture(50 + label))
    kit = put(tmp_path / "ILSVRC2012_validation_ground_truth.txt", "1\n3\n2\n")
    order = put(tmp_path / "synsets.txt", "\n".join((SYNSETS[2], SYNSETS[0], SYNSETS[1])))
    arguments = [str(root), str(tmp_path / "out.tar"), "--val-labels", str(kit)]
    refused(capsys, imagenet.main, arguments, "give --synsets")
    with pytest.raises(SystemExit):  # tar files are stored as they are
        imagenet.main([*arguments, "--synsets", str(order), "--resize", "64"])
    imagenet.main([*arguments, "--synsets", str(order)])
    check_imagenet(tmp_path / "out.tar")
    with open_reader(tmp_path / "out.tar") as reader:
        assert set(reader.record(6).fields) == {"png", "cls", "json"}
        assert reader.record(0).fields["jpg"] == picture(0)


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def test_imagenet_validation_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    caffe = put(tmp_path / "val.txt", "ILSVRC2012_val_00000001.JPEG 2\nILSVRC2012_val_00000002.JPEG 1\n")
    found = imagenet.val_labels(tmp_path, caffe, None, list(SYNSETS))
    assert found == {"ILSVRC2012_val_00000001": 2, "ILSVRC2012_val_00000002": 1}
    imagenet_folders(tmp_path / "set", val_folders=False)
    arguments = [str(tmp_path / "set"), str(tmp_path / "out.lmdb")]
    refused(capsys, imagenet.main, arguments, r"no label for .*ILSVRC2012_val_00000001")
    strange = put(tmp_path / "LOC_val_solution.csv", "ImageId,PredictionString\nILSVRC2012_val_00000001,n99 1 2 3 4\n")
    with pytest.raises(SourceError, match="names synsets that are not among the training folders: n99"):
        imagenet.val_labels(tmp_path, strange, None, list(SYNSETS))


def cifar_file(heads: int, count: int, seed: int) -> tuple[bytes, np.ndarray]:
    """A file of CIFAR's binary version, and its images (N, 32, 32, 3)."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
    labels = np.arange(count * heads).reshape(count, heads) % 10
    planes = images.transpose(0, 3, 1, 2).reshape(count, -1)
    return np.concatenate((labels.astype(np.uint8), planes), 1).tobytes(), images


def test_cifar10(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, seen = tmp_path / "cifar-10-batches-bin", []
    for number, names in enumerate((*cifar.TEN["train"], *cifar.TEN["test"])):
        data, images = cifar_file(1, 4, number)
        put(root / names, data)
        seen.append(images)
    put(root / "batches.meta.txt", "\n".join(f"class{number}" for number in range(10)) + "\n\n")
    cifar.main([str(root), str(tmp_path / "out.lmdb")])
    train, test = (FastDataset(tmp_path / "out.lmdb", split=split) for split in ("train", "test"))
    assert (len(train), len(test), len(train.classes)) == (20, 4, 10)
    assert train.targets == [0, 1, 2, 3] * 5
    assert all((np.asarray(train[i][0]) == seen[i // 4][i % 4]).all() for i in range(20))
    assert (np.asarray(test[3][0]) == seen[5][3]).all()
    put(root / "test_batch.bin", b"x" * 100)
    refused(capsys, cifar.main, [str(root), str(tmp_path / "other.lmdb")], "has 100 bytes, expected a multiple of 3073")
    assert not (tmp_path / "other.lmdb").exists()


def test_cifar100_and_pickles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "cifar-100-binary"
    for number, name in enumerate(("train.bin", "test.bin")):
        put(root / name, cifar_file(2, 5, number)[0])
    put(root / "fine_label_names.txt", "\n".join(f"fine{number}" for number in range(100)))
    cifar.main([str(root), str(tmp_path / "out.tar")])
    with open_reader(tmp_path / "out.tar") as reader:
        assert reader.record(1).fields["cls"] == b"3"
        assert reader.record(1).fields["coarse.cls"] == b"2"
    put(tmp_path / "python" / "data_batch_1", b"\x80\x02.")
    arguments = [str(tmp_path / "python"), str(tmp_path / "x.lmdb")]
    refused(capsys, cifar.main, arguments, "which is pickled: take the binary one")


def test_coco(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = [{"id": 90 - i, "file_name": f"{i:012d}.jpg", "width": 60, "height": 40} for i in range(3)]
    for image in images:
        put(tmp_path / "train2017" / str(image["file_name"]), picture(int(str(image["id"]))))
    put(tmp_path / "val2017" / "000000000009.jpg", picture(9))
    categories = [{"id": 1, "name": "person"}, {"id": 90, "name": "brush"}]
    crowd = {"counts": [5, 10], "size": [40, 60]}
    polygon = {"id": 7, "category_id": 90, "bbox": [1, 2, 10, 20], "area": 3, "iscrowd": 0}
    lengths = {"id": 5, "category_id": 1, "bbox": [0.5, 0, 1, 1], "area": 1, "iscrowd": 1, "segmentation": crowd}
    boxes = [{**polygon, "segmentation": [[1, 2, 11, 2, 11, 22]], "image_id": 90}, {**lengths, "image_id": 90}]
    texts = [{"id": 2, "image_id": 88, "caption": "b"}, {"id": 1, "image_id": 88, "caption": "a"}]
    said = {"images": images, "annotations": boxes, "categories": categories}
    put(tmp_path / "annotations" / "instances_train2017.json", json.dumps(said))
    put(tmp_path / "annotations" / "captions_train2017.json", json.dumps({"images": images, "annotations": texts}))
    for name, options, half in (("out.tar", [], 1), ("half.lmdb", ["--resize", "20"], 0.5)):
        assert coco.main([str(tmp_path), str(tmp_path / name), "--workers", "1", *options]) == 0
        dataset = FastDataset(tmp_path / name, split="train", fields=("image", "objects.json", "captions.json"))
        assert dataset.manifest.recipe["categories"] == ["person", "brush"]
        first, second, third = (dataset[i] for i in range(3))
        assert first["image"].size == (60 * half, 40 * half)
        objects = first["objects.json"]
        assert objects["boxes"] == [[0.5 * half, 0, 1.5 * half, half], [half, 2 * half, 11 * half, 22 * half]]
        assert objects["segmentation"] == [[], [[half, 2 * half, 11 * half, 2 * half, 11 * half, 22 * half]]]
        assert (objects["categories"], objects["id"]) == ([0, 1], [5, 7])
        assert (objects["area"], objects["iscrowd"], objects["rle"]) == ([1, 3], [1, 0], [crowd, None])
        assert second["objects.json"]["boxes"] == second["captions.json"] == []
        assert third["captions.json"] == ["a", "b"]
        with open_reader(tmp_path / name) as reader:
            assert set(reader.record(3).fields) == {"jpg", "json"}
    put(tmp_path / "annotations" / "captions_val2017.json", "[]")
    refused(capsys, coco.main, [str(tmp_path), str(tmp_path / "x.tar")], "expected images and annotations")


def test_ade20k(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    masks = {}
    names = {"ADE_train_00000001": "training", "ADE_train_00000002": "training", "ADE_val_1": "validation"}
    for name, split in names.items():
        put(tmp_path / "images" / split / f"{name}.jpg", picture(len(masks)))
        masks[name] = np.full((40, 60), len(masks) * 70, np.uint8)
        put(tmp_path / "annotations" / split / f"{name}.png", png(masks[name]))
    put(tmp_path / "sceneCategories.txt", "ADE_train_00000001 street\nADE_val_1 airport terminal\n")
    table = "Idx\tRatio\tTrain\tVal\tName\n1\t0.1\t5\t6\twall\n2\t0.1\t5\t6\tbuilding, edifice\n"
    put(tmp_path / "objectInfo150.txt", table)
    assert ade20k.main([str(tmp_path), str(tmp_path / "out.lmdb"), "--workers", "1"]) == 0
    dataset = FastDataset(tmp_path / "out.lmdb", split="all", fields=("image", "seg.png", "scene.txt"))
    assert dataset.manifest.recipe["mask_classes"] == ["wall", "building, edifice"]
    assert [sample["scene.txt"] for sample in (dataset[i] for i in range(3))] == ["street", None, "airport terminal"]
    assert all((dataset[i]["seg.png"] == mask).all() for i, mask in enumerate(masks.values()))
    assert len(FastDataset(tmp_path / "out.lmdb", split="val")) == 1
    with open_reader(tmp_path / "out.lmdb") as reader:
        assert reader.record(0).fields["seg.png"] == png(masks["ADE_train_00000001"])
    ade20k.main([str(tmp_path), str(tmp_path / "half.tar"), "--resize", "20", "--workers", "1"])
    half = FastDataset(tmp_path / "half.tar", split="all", fields=("image", "seg.png"))
    assert half[1]["image"].size == (30, 20)
    assert (half[1]["seg.png"] == np.full((20, 30), 70)).all()
    put(tmp_path / "images" / "training" / "more.jpg", picture(1))
    refused(capsys, ade20k.main, [str(tmp_path), str(tmp_path / "x.lmdb")], "do not match: only one has more")


def test_captions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        put(tmp_path / "set" / f"{number}.jpg", picture(number))
    put(tmp_path / "set" / "0.txt", "ein Bär")
    put(tmp_path / "set" / "2.txt", "")
    put(tmp_path / "set" / "2.json", '{"score": 1}')
    captions.main([str(tmp_path / "set"), str(tmp_path / "out.tfrecord"), "--resize", "20", "--workers", "1"])
    assert capsys.readouterr().err == "1 of 3 images have no caption: left out\n"
    dataset = FastDataset(tmp_path / "out.tfrecord", fields=("image", "txt", "meta.json"))
    assert [dataset[i]["txt"] for i in range(2)] == ["ein Bär", ""]
    assert dataset[1]["meta.json"] == {"score": 1}
    assert dataset[0]["image"].size == (30, 20)
    (tmp_path / "set" / "0.txt").unlink()
    (tmp_path / "set" / "2.txt").unlink()
    refused(capsys, captions.main, [str(tmp_path / "set"), str(tmp_path / "x.tar")], "has a caption beside it")


def test_hf_imagefolder_with_splits(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for split, numbers in (("train", (0, 1, 2)), ("test", (3,))):
        rows = [f"{number}.jpg,{number % 2},text {number}\n" for number in numbers]
        put(root / split / "metadata.csv", "file_name,label,text\n" + "".join(rows))
        for number in numbers:
            put(root / split / f"{number}.jpg", picture(number))
    hf_imagefolder.main([str(root), str(tmp_path / "out.lmdb"), "--workers", "1"])
    train = FastDataset(tmp_path / "out.lmdb", split="train", fields=("label", "text.txt"))
    assert [tuple(train[i].values()) for i in range(3)] == [(0, "text 0"), (1, "text 1"), (0, "text 2")]
    assert FastDataset(tmp_path / "out.lmdb", split="test").targets == [1]


def test_hf_imagefolder_with_objects(tmp_path: Path) -> None:
    rows = [{"file_name": f"img/{i}.jpg", "label": "ab"[i], "objects": {"bbox": [[i, 1, 2, 3]]}} for i in range(2)]
    put(tmp_path / "set" / "metadata.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    for number in range(2):
        put(tmp_path / "set" / "img" / f"{number}.jpg", picture(number))
    hf_imagefolder.pack_imagefolder(tmp_path / "set", tmp_path / "out.lmdb", resize=20, workers=1)
    dataset = FastDataset(tmp_path / "out.lmdb", fields=("label", "image", "objects.json"))
    assert dataset.classes == ["a", "b"]
    assert dataset[1]["objects.json"] == {"bbox": [[0.5, 0.5, 1, 1.5]]}
    put(tmp_path / "set" / "metadata.jsonl", '{"label": 1}\n')
    with pytest.raises(SourceError, match="has a row without file_name"):
        hf_imagefolder.pack_imagefolder(tmp_path / "set", tmp_path / "x.lmdb")


def test_hf_imagefolder_of_class_folders(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        put(tmp_path / "set" / "train" / name / "0.jpg", picture(len(name)))
    hf_imagefolder.pack_imagefolder(tmp_path / "set", tmp_path / "out.lmdb", workers=1)
    assert FastDataset(tmp_path / "out.lmdb", split="train").classes == ["cat", "dog"]


def test_files_that_no_recipe_knows_are_one_line_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "train2017" / "1.jpg", picture(1))
    said = {"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": [{"id": 1, "image_id": 9}], "categories": []}
    put(tmp_path / "annotations" / "instances_train2017.json", json.dumps(said))
    arguments = [str(tmp_path), str(tmp_path / "x.tar")]
    refused(capsys, coco.main, arguments, "of images that are not listed: 9")
    said["annotations"] = [{"id": 1, "image_id": 1}]
    put(tmp_path / "annotations" / "instances_train2017.json", json.dumps(said))
    refused(capsys, coco.main, arguments, "do not fit this recipe.*bbox")
    put(tmp_path / "annotations" / "instances_train2017.json", '{"images": [')
    refused(capsys, coco.main, arguments, r"instances_train2017\.json is not JSON")
    put(tmp_path / "tars" / imagenet.TRAIN_TAR, b"")
    refused(
        capsys,
        imagenet.main,
        [str(tmp_path / "tars"), str(tmp_path / "y.tar")],
        "img_train.tar is not a readable tar file",
    )


def test_rows_that_lead_out_of_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "x.jpg", picture(1))
    for path in ("../x.jpg", str(tmp_path / "x.jpg"), "."):
        put(tmp_path / "set" / "metadata.csv", f"file_name,text\n{path},a\n")
        arguments = [str(tmp_path / "set"), str(tmp_path / "x.tar")]
        refused(capsys, hf_imagefolder.main, arguments, "is not a path of a file in")


def test_a_recipe_prints_a_summary_and_returns_packs_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(9):
        put(tmp_path / "set" / f"{number}.jpg", picture(number) if number else b"\xff\xd8\xff nothing")
        put(tmp_path / "set" / f"{number}.txt", f"number {number}")
    put(tmp_path / "set" / "alone.jpg", picture(77))
    arguments = [str(tmp_path / "set"), str(tmp_path / "x.tar"), "--workers", "1"]
    assert captions.main([*arguments, "--max-errors", "1%"]) == 1
    assert captions.main([*arguments, "--max-errors", "20%"]) == 3
    printed = capsys.readouterr()
    assert "packed 8 images" in printed.out
    assert "1 of 10 images have no caption" in printed.err
