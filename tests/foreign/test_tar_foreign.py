"""Tar shards of other programs: records as in WebDataset, names, labels, damage."""

import gzip
import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from container_sets import records
from kernel_images import exif, jpeg, photo
from tar_sets import build, foreign

from iofast import FastDataset, open_reader
from iofast.checking import verify
from iofast.errors import ContainerError, OptionError, SourceError
from iofast.foreign.options import ForeignOptions
from iofast.foreign.reader import ForeignReader
from iofast.foreign.tar import TarShards
from iofast.record import Record


def theirs(*paths: Path) -> list[Record]:
    """The records that webdataset reads from the shards."""
    from webdataset.tariterators import group_by_keys, tar_file_expander

    found: list[dict[str, bytes]] = []
    for path in paths:
        with path.open("rb") as stream:
            found += group_by_keys(tar_file_expander([{"url": str(path), "stream": stream}]))
    return [Record(item["__key__"], {k: v for k, v in item.items() if k[:2] != "__"}) for item in found]  # type: ignore[arg-type]


def test_what_webdatasets_writer_wrote(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.ShardWriter(str(tmp_path / "x-%06d.tar"), maxcount=7, verbose=0, start_shard=0) as writer:
        for i in range(20):
            image = jpeg(photo(40 + i, 30, i), "RGB", **({"exif": exif(6)} if i % 2 else {}))
            writer.write(
                {"__key__": f"n{i % 3}/{i:04d}", "jpg": image, "cls": i % 3, "json": {"i": i}, "seg.png": b"x"}
            )
    shards = sorted(tmp_path.glob("*.tar"))
    assert len(shards) == 3
    with open_reader(tmp_path / "x-{000000..000002}.tar") as reader:
        assert list(reader) == theirs(*shards)
        assert reader.manifest.fields == ("cls", "jpg", "json", "seg.png")
        located = reader.locate(np.arange(20))
        assert located.label.tolist() == [i % 3 for i in range(20)]
        assert located.width.tolist() == [30 if i % 2 else 40 + i for i in range(20)]
        assert located.orientation.tolist() == [6 if i % 2 else 1 for i in range(20)]
        assert reader.keys(located) == [f"n{i % 3}/{i:04d}" for i in range(20)]
        assert reader.name(8) == f"{shards[1]}: n2/0008"
    for paths in (str(tmp_path / "*.tar"), [str(path) for path in shards]):
        dataset = FastDataset(paths)
        assert [dataset[i][1] for i in range(20)] == [i % 3 for i in range(20)]
        assert dataset[19][0].size == (30, 59)


AWKWARD = [
    ("./a.jpg", b"1"),
    ("./a.cls", b"7"),
    ("dir.with.dots/b.seg.PNG", b"2"),
    ("dir.with.dots/b.txt", b""),
    ("no-dot", b"left out"),
    ("__meta__.json", b"left out"),
    ("__meta__/x.json", b"left out"),
    ("dir/.hidden", b"3"),
    ("c.x", b"4"),
    ("d.x", b"5"),
    ("ä/ö.txt", b"6"),
    ("k" * 150 + ".txt", b"long name"),
    ("l" * 120 + "/" + "m" * 90 + ".txt", b"in prefix and name"),
]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_as_webdataset_reads_them(tmp_path: Path, kind: int) -> None:
    pytest.importorskip("webdataset")
    members = [(name, data) for name, data in AWKWARD if kind != tarfile.USTAR_FORMAT or len(name) != 154]
    path = foreign(tmp_path / "x.tar", members, kind)
    assert records(path) == theirs(path)
    with ForeignReader("x", TarShards([str(path)], ForeignOptions())) as reader:
        assert reader.left_out == (
            "members in folders of a system, or whose names make no key and field: 1 left out",
        )  # `no-dot`
        assert reader.locate(np.arange(1), "cls").label.tolist() == [7]


NAMED = [
    ("a.photo.jpeg", jpeg(photo(20, 10, 1), "RGB")),
    ("a.thumb.jpg", b"small"),
    ("a.jpg", b"not the one"),
    ("a.cat", b"3"),
    ("a.json", b'{"label":9,"kind":{"x":1},"category":2}'),
    ("a.Mask.PNG", b"mask"),
    ("b.photo.jpeg", jpeg(photo(30, 10, 1), "RGB")),
    ("b.json", b"[]"),
]


@pytest.mark.parametrize(("label", "wanted"), [("cat", [3, -1]), ("json/category", [2, -1]), (None, [9, -1])])
def test_named_members(tmp_path: Path, label: str | None, wanted: list[int]) -> None:
    names = {"image": "photo.jpeg", "seg.png": "mask.png"} | ({"label": label} if label else {})
    path = foreign(tmp_path / "x.tar", NAMED)
    with open_reader(path, {"names": names}) as reader:
        assert reader.columns(np.arange(2)).label.tolist() == wanted
        assert reader.columns(np.arange(2)).width.tolist() == [20, 30]
        said = {"cls"} if label else set()
        assert set(reader.record(0).fields) == {"jpg", "thumb.jpg", "cat", "json", "seg.png"} | said
        assert set(reader.record(1).fields) == {"jpg", "json"}
        assert reader.values(np.arange(2)) == [NAMED[0][1], NAMED[6][1]]
        if label:
            assert reader.values(np.arange(2), "cls") == [b"%d" % wanted[0], None]
            assert bytes(reader.view(0, "cls")) == b"%d" % wanted[0]
            assert b"cls" in pickle.dumps(reader)
            with pytest.raises(KeyError, match="field 'cls' lies in no file"):
                reader.locate(np.arange(1), "cls")
    based = FastDataset(path, fields=("label", "key"), foreign={"names": names, "label_base": 1})
    assert [based[i]["label"] for i in range(2)] == [wanted[0] - 1, -1]


def test_labels_below_their_base(tmp_path: Path) -> None:
    path = foreign(tmp_path / "x.tar", [("a.txt", b"1"), ("a.cls", b"0")])
    assert open_reader(path).columns(np.arange(1)).label.tolist() == [0]
    with pytest.raises(ContainerError, match=r"x\.tar: a: its label is 0, expected 1 \(the label base\) or more"):
        open_reader(path, {"label_base": 1})
    with pytest.raises(OptionError, match="path of a sample in tar shards is its key"):
        open_reader(path, {"names": {"path": "x"}})


def test_links_and_folders_are_skipped(tmp_path: Path) -> None:
    pytest.importorskip("webdataset")
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "global"}) as tar:
        for kind, name in ((tarfile.DIRTYPE, "d"), (tarfile.SYMTYPE, "a.jpg"), (tarfile.LNKTYPE, "b.jpg")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        for name in ("c.jpg", "c.txt"):
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.pax_headers = 3, 1.5, {"SCHILY.xattr": "x\n" * 300}  # type: ignore[assignment]
            tar.addfile(info, io.BytesIO(b"abc"))
    assert records(path) == theirs(path) == [Record("c", {"jpg": b"abc", "txt": b"abc"})]


IMAGE = jpeg(photo(20, 10, 1), "RGB")
UNNAMED = {"a.with space": b"2", "a.": b"3", "a." + "x" * 65: b"4", "__meta__/x.json": b""}
SYSTEM = ("__MACOSX/a/1.jpg", "@eaDir/1.jpg", "a/@eaDir/1.jpg/thumb.jpg", "$RECYCLE.BIN/1.jpg")
NO_NAME = "members in folders of a system, or whose names make no key and field: {} left out"
NO_LABEL = "no labels: 'label' may be labels, and --names label=MEMBER takes one"
LEFT_OUT: list[tuple[dict[str, bytes], dict[str, str], str]] = [
    ({"a/1.jpg": IMAGE, **dict.fromkeys(SYSTEM, IMAGE)}, {}, NO_NAME.format(4)),  # else they are images of their own
    ({"a.jpg": b"1"} | UNNAMED, {}, NO_NAME.format(3)),
    ({"a.jpg": b"1", "a.Label": b"1"}, {}, NO_LABEL),
    ({"a.jpg": b"1", "a.Label": b"1"}, {"label": "label"}, ""),
    ({"a.jpg": b"1", "a.class_id": b"1", "a.cls": b"0"}, {}, ""),
]


@pytest.mark.parametrize(("members", "names", "line"), LEFT_OUT)
def test_what_is_left_out_is_told(tmp_path: Path, members: dict[str, bytes], names: dict[str, str], line: str) -> None:
    with ForeignReader("x", TarShards([str(foreign(tmp_path / "x.tar", members))], ForeignOptions(names))) as reader:
        assert len(reader) == 1
        assert len(reader.left_out) == bool(line)
        assert all(found.startswith(line) for found in reader.left_out)


def test_labels_and_other_names_of_jpeg(tmp_path: Path) -> None:
    image = jpeg(photo(20, 10, 1), "RGB")
    members = [("a.JPEG", image), ("a.cls", b" 12\n"), ("b.jpeg", image), ("b.json", b'{"label": 3}')]
    members += [("c.json", b'{"label": "x"}'), ("d.cls", b"-1"), ("e.cls", b"9" * 30), ("f.json", b"[" * 3000)]
    with open_reader(foreign(tmp_path / "x.tar", members)) as reader:
        located = reader.locate(np.arange(6))
        assert located.label.tolist() == [12, 3, -1, -1, -1, -1]
        assert located.width.tolist() == [20, 20, 0, 0, 0, 0]
        assert reader.values(np.arange(3), "jpg") == [image, image, None]


@pytest.mark.parametrize(
    ("between", "offset"), [([], 1536), ([("b.txt", b"3")], 2560)], ids=["adjacent", "after another record"]
)
def test_a_field_twice_in_one_record(tmp_path: Path, between: list[tuple[str, bytes]], offset: int) -> None:
    path = foreign(tmp_path / "x.tar", [("a.txt", b"1"), *between, ("a.TXT", b"2")])
    with pytest.raises(ContainerError, match=rf"x\.tar: a has the field txt twice, at offsets 512 and {offset}"):
        open_reader(path)


@pytest.mark.parametrize("names", [{}, {"label": "json/kind"}, {"label": "cat"}])
def test_members_that_are_not_adjacent(tmp_path: Path, names: dict[str, str]) -> None:
    """Labels that were appended later, and a record whose first member is not its image."""
    label = {"": "cls", "json/kind": "json", "cat": "cat"}[names.get("label", "")]
    members = [(f"{key}.jpg", jpeg(photo(20, 10), "RGB")) for key in "abc"] + [("d.txt", b"text")]
    members += [
        (f"{key}.{label}", b'{"kind":%d}' % n if label == "json" else b"%d" % n) for n, key in enumerate("abcd")
    ]
    path = foreign(tmp_path / "x.tar", [*members, ("d.jpg", jpeg(photo(30, 10), "RGB"))])
    with open_reader(path, {"names": names}) as reader:
        located = reader.columns(np.arange(4))
        assert located.label.tolist() == [0, 1, 2, 3]
        assert located.width.tolist() == [20, 20, 20, 30]
        assert [record.key for record in reader] == ["a", "b", "c", "d"]
        assert set(reader.record(3).fields) == {"jpg", "txt", label, "cls"}


def test_dots_in_keys_are_named(tmp_path: Path) -> None:
    image = jpeg(photo(20, 10), "RGB")
    words = "a key ends at the first dot, so 'd/img.v1.0.jpg' is the field 'v1.0.jpg' of 'd/img'"
    path = foreign(tmp_path / "x.tar", [(f"d/img.v1.{number}.jpg", image) for number in range(3)])
    with pytest.raises(OptionError, match=f"has no images.* v1.0.jpg.*{words}"):
        FastDataset(path)
    assert any(note.endswith(words) for note in verify(path).notes)
    foreign(path, [(f"img.v1.{number}.x", b"") for number in range(1025)])
    with pytest.raises(
        ContainerError, match=r"more than 1024 different fields, at offset \d+; .*so 'img.v1.1024.x' is"
    ):
        open_reader(path)


def test_part_of_a_set_of_ours(tmp_path: Path) -> None:
    """Whose `.partial` is gone and whose manifest names more shards than were asked for."""
    from lmdb_containers import expected, samples

    build(tmp_path / "x.tar", samples())
    assert records(tmp_path / "x-val-*.tar") == expected(samples())[200:]


# What is refused.


@pytest.mark.parametrize(
    ("name", "data", "error"),
    [
        ("x.tar.gz", gzip.compress(b"x" * 2000, mtime=0), "compressed with gzip.*decompress"),
        ("x.tar", b"\x28\xb5\x2f\xfd" + bytes(600), "compressed with zstd"),
        ("x.tar", b"something else" * 100, r"x\.tar is no tar file: the checksum of the header at offset 0 differs"),
        ("x.tar", b"short", "cut off: at offset 0"),
        ("x.tar", b"", "is not a regular file, or is empty"),
    ],
)
def test_other_files_are_an_error(tmp_path: Path, name: str, data: bytes, error: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ContainerError, match=error):
        open_reader(tmp_path / name)


def test_missing_shards(tmp_path: Path) -> None:
    foreign(tmp_path / "x-0.tar", {"a.txt": b"1"})
    with pytest.raises(SourceError, match=r"x-1\.tar does not exist"):
        open_reader(tmp_path / "x-{0..1}.tar")


def test_a_file_cut_anywhere(tmp_path: Path) -> None:
    """An error with file and offset, never fewer records."""
    path = foreign(tmp_path / "x.tar", AWKWARD, tarfile.PAX_FORMAT)
    data, right = path.read_bytes(), records(path)
    end = len(data.rstrip(b"\0")) // 512 * 512 + 512
    for size in range(1, end, 611):
        path.write_bytes(data[:size])
        with pytest.raises(ContainerError, match=r"x\.tar was cut off|x\.tar is damaged"):
            open_reader(path)
    path.write_bytes(data[: end + 512])  # one block of zeros is an end
    assert records(path) == right
