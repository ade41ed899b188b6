"""Packing from a bucket: equal bytes as from a folder, resuming, changed and missing objects, manifests with URLs."""

import json
from pathlib import Path

import pytest
from folder_images import image
from object_store import Bucket, FaultProxy, Request
from packing_runs import digests, interrupt
from todays import todays

from iofast.errors import SourceError, TargetError
from iofast.opening import open_reader
from iofast.packing import pack
from iofast.source import SourceOptions
from iofast.source.scan import scan

ANY = {"max_errors": 100}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def photos(number: int, suffix: str = "jpg", start: int = 0) -> dict[str, bytes]:
    return {f"{each:03d}.{suffix}": image(40, 30, seed=start + each) for each in range(number)}


def below(prefix: str, files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{prefix}/{name}": data for name, data in files.items()}


CLASSES = below("cat", photos(5)) | below("dog-x", photos(4, "JPEG", 10)) | below("dog/deep", photos(3, "png", 20))
ODD = {
    "cat/odd": image(20, 20),  # known by its first bytes
    "cat/words.md": b"no image",
    "cat/.hidden.jpg": image(10, 10),
    "cat/damaged.jpg": b"no image",
    "__MACOSX/x.jpg": b"",
    "loose.jpg": image(9, 9),
}
SIDES = {path.rpartition(".")[0] + ".txt": path.encode() for path in CLASSES if "dog-x" not in path}
FOLDERS = {
    "flat": (photos(6), {}),
    "splits": (below("train", CLASSES) | below("val", CLASSES) | below("test", photos(2)), {}),
    "odd": (CLASSES | ODD, {}),
    "fields": (CLASSES | SIDES | {"lone.txt": b"x"}, {"fields": "txt"}),
    "natural": (below("10", photos(2)) | below("9", photos(2)), {"class_order": "natural"}),
    "file": (CLASSES | {"classes.txt": b"dog\ndog-x\ncat\n"}, {"class_order": "file"}),
    "sampled": (CLASSES, {"shuffle": 1, "shard_size": 10_000}),
    "unlike names": (below("ü #?%41", photos(2)) | below("a b", photos(2)), {}),
}


@pytest.mark.filterwarnings("ignore")  # those about the folders are compared below
@pytest.mark.parametrize("name", ["odd", *todays([name for name in FOLDERS if name != "odd"])])
def test_bucket_and_folder_give_equal_bytes(bucket: Bucket, tmp_path: Path, name: str) -> None:
    files, options = FOLDERS[name]
    folder = write(tmp_path / "images", files)
    url = bucket.upload(folder, "data/photos")
    bucket.put("data/photos/cat/", b"")  # marks a folder, as consoles make them
    bucket.put("data/photos-other/x.jpg", b"no image")
    local = pack(folder, tmp_path / "local" / "out.tar", resize=24, workers=2, **ANY, **options)
    remote = pack(url, tmp_path / "remote" / "out.tar", resize=24, workers=2, **ANY, **options)
    assert digests(tmp_path / "local") == digests(tmp_path / "remote")
    assert remote.source == url
    same = ("images", "packed", "failed", "classes", "splits", "errors", "bytes_in", "bytes_out", "notes")
    assert [getattr(remote, each) for each in same] == [getattr(local, each) for each in same]
    assert [text.replace(url.rstrip("/"), str(folder)) for text in remote.warnings] == list(local.warnings)


def test_any_prefix(bucket: Bucket, tmp_path: Path) -> None:
    bucket.upload(write(tmp_path / "images", photos(3)), "data/photos")
    for prefix in ("data/photos", ""):
        source = scan(f"s3://{bucket.name}/{prefix}")
        assert len(source) == 3
        assert source.file(0).decode() == f"s3://{bucket.name}/data/photos/000.jpg"
        assert source.size(0) == len(photos(1)["000.jpg"])
    with pytest.raises(SourceError, match=r"no images in s3://bucket-\d+/nothing: .* an empty folder"):
        scan(f"s3://{bucket.name}/nothing/")


def test_resuming_unless_the_bucket_has_changed(bucket: Bucket, tmp_path: Path) -> None:
    folder = write(tmp_path / "images", below("a", photos(70)) | below("b", photos(60, start=100)))
    url, target = bucket.upload(folder, "p"), tmp_path / "out.lmdb"
    pack(folder, tmp_path / "whole.lmdb", resize=24, workers=2)
    interrupt(url, target, 20, resize=24)
    for data, words in (
        (image(40, 30, seed=999), "the source as it was before it changed"),
        (None, "130 images, not 129"),
    ):
        bucket.request("DELETE", "p/b/059.jpg") if data is None else bucket.put("p/b/059.jpg", data)
        with pytest.raises(TargetError, match=words):
            pack(url, target, resize=24, workers=2)
    bucket.put("p/b/060.jpg", image(40, 30, seed=999))  # another object in the place of one
    with pytest.raises(TargetError, match="the source as it was before it changed"):
        pack(url, target, resize=24, workers=2)
    bucket.request("DELETE", "p/b/060.jpg")
    bucket.put("p/b/059.jpg", photos(60, start=100)["059.jpg"])
    assert pack(url, target, resize=24, workers=2).resumed > 0
    assert [*digests(tmp_path, "out.lmdb").values()] == [*digests(tmp_path, "whole.lmdb").values()]


def test_objects_that_change_or_vanish_after_the_listing(bucket: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    """They fail alone; never are other bytes taken."""
    url = bucket.upload(write(tmp_path / "images", photos(12) | {"012.jpg": b""}), "p")

    def change(request: Request) -> None:
        if "/p/005.jpg" in request.path and request.number == 0:
            bucket.put("p/005.jpg", image(40, 30, seed=999))
        if "/p/007.jpg" in request.path and request.number == 0:
            bucket.request("DELETE", "p/007.jpg")

    proxy.plan = change
    report = pack(url, tmp_path / "out.lmdb", workers=2, **ANY)
    assert report.packed == 10
    assert dict(report.errors) == {
        "the object changed after it was listed": 1,
        "the object does not exist": 1,
        "the object is empty": 1,
    }
    with open_reader(tmp_path / "out.lmdb") as reader:
        assert reader.record(4).fields["jpg"] == photos(12)["004.jpg"]
    gets = [each for each in proxy.requests if each.path.endswith(".jpg")]
    assert all(each.headers.get("if-match", "").startswith('"') for each in gets)


def test_manifests_with_urls(bucket: Bucket, tmp_path: Path) -> None:
    """Stores and local files may be mixed; masks may be objects; a manifest may be an object itself."""
    files = below("cat", photos(3)) | {"mask.png": image(40, 30, "PNG"), "note.txt": b"hello"}
    folder = write(tmp_path / "images", files)
    bucket.upload(folder, "p")
    base = f"s3://{bucket.name}/p"
    rows = [
        {"path": f"{base}/cat/000.jpg", "label": "a", "mask": f"{base}/mask.png", "n": 1},
        {"path": "images/cat/001.jpg", "label": "b", "mask": "images/mask.png", "n": 2},
        {"path": f"{base}/cat/none.jpg", "label": "b", "mask": None, "n": 3},
        {"path": f"{base}/cat/002.jpg", "label": "b", "mask": f"{base}/none.png", "n": 4},
        {"path": f"{base}/cat/002.jpg", "label": "b", "mask": None, "n": 5},
    ]
    manifest = tmp_path / "list.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = pack(manifest, tmp_path / "out.lmdb", workers=2, mask_column="mask", **ANY)
    assert dict(report.errors) == {"the object does not exist": 1, "mask.png: its file cannot be read": 1}
    with open_reader(tmp_path / "out.lmdb") as reader:
        records = [reader.record(number) for number in range(len(reader))]
        paths = [json.loads(record.fields["json"])["path"] for record in records]
    assert paths == [rows[0]["path"], rows[1]["path"], rows[4]["path"]]
    assert records[0].fields["mask.png"] == records[1].fields["mask.png"]
    for each in rows:
        each["path"] = each["path"].removeprefix(f"{base}/").removeprefix("images/")
        each["mask"] = each["mask"] and each["mask"].removeprefix(f"{base}/").removeprefix("images/")
    bucket.put("p/list.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    report = pack(f"{base}/list.jsonl", tmp_path / "other.lmdb", workers=2, mask_column="mask", **ANY)
    assert report.packed == 3
    assert scan(f"{base}/list.jsonl").fingerprint() != scan(manifest).fingerprint()


def test_errors_of_a_manifest_in_a_store_name_its_url(bucket: Bucket) -> None:
    bucket.put("p/list.csv", b"path,label\na.jpg\n")
    with pytest.raises(SourceError, match=rf"s3://{bucket.name}/p/list.csv, line 2: expected 2 columns"):
        scan(f"s3://{bucket.name}/p/list.csv")
    with pytest.raises(SourceError, match=rf"source not found: s3://{bucket.name}/p/none.csv"):
        scan(f"s3://{bucket.name}/p/none.csv")
    bucket.put("p/list.csv", b"path,label\na.jpg,cat\n")
    with pytest.raises(SourceError, match=rf"a class per line in s3://{bucket.name}/p/classes.txt, which does not"):
        scan(f"s3://{bucket.name}/p/list.csv", SourceOptions(class_order="file"))


def test_the_fingerprint_covers_versions_but_no_place(bucket: Bucket, tmp_path: Path) -> None:
    folder = write(tmp_path / "images", CLASSES)
    first, second = bucket.upload(folder, "p"), bucket.upload(folder, "q")
    before = scan(first).fingerprint()
    assert before == scan(second).fingerprint() != scan(folder).fingerprint()
    bucket.put("p/cat/000.jpg", image(40, 30, seed=77))
    assert scan(first).fingerprint() != before


def test_a_dataset_does_not_read_stores(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("p/x.jpg", image(9, 9))
    (tmp_path / "list.csv").write_text(f"path\ns3://{bucket.name}/p/x.jpg\n")
    with pytest.raises(SourceError, match="names images in object stores"):
        open_reader(tmp_path / "list.csv")
