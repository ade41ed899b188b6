"""The manifest: valid texts are read back, all others are refused."""

import json
import re
from dataclasses import replace

import google_crc32c
import pytest
from places import ROOT

from iofast.containers.manifest import Manifest, Shard
from iofast.errors import ContainerError

FINGERPRINT = "sha256:" + "0123456789abcdef" * 4
FORMAT = ROOT / "docs" / "format.md"


def make(**changes: object) -> Manifest:
    plain = Manifest(
        count=3,
        fields=("cls", "jpg"),
        splits={"train": ((0, 2),), "val": ((2, 3),)},
        fingerprint=FINGERPRINT,
        shards=(Shard("", 3, 8192),),
        classes=("cat", "dög"),
        recipe={"resize": 256, "libraries": {"Pillow": "11.0"}},
        seed=7,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def sealed(members: dict[str, object]) -> bytes:
    """Members as an outsider would write them: CRC32C over the text with eight zeros in its place."""
    text = json.dumps({**members, "crc32c": "00000000"}, sort_keys=True, separators=(",", ":"))
    head, mark, tail = text.partition('"crc32c":"')
    return (head + mark + f"{google_crc32c.value(text.encode()):08x}" + tail[8:]).encode()


def members(manifest: Manifest) -> dict[str, object]:
    parsed: dict[str, object] = json.loads(manifest.to_json())
    return parsed


AWKWARD: list[dict[str, object]] = [
    {},
    {"splits": {"b": ((0, 1), (2, 3)), "a": ((1, 2),)}},  # in packing order
    {"splits": {"train": ((0, 3),)}, "classes": None, "seed": None, "recipe": {}, "class_order": "natural"},
    {"classes": ("", "\0", "\U0001f408", "'\"\\\n"), "seed": (1 << 64) - 1, "key_width": 20, "class_order": "file"},
    {"fields": ("a", "a-b.z_9", "z" * 64), "shards": (Shard("", 3, 1 << 50),), "key_width": 1},
    {"recipe": {"": None, "ü": [True, 1 << 70, -0.5, 1e300, {"a": []}]}},
]


@pytest.mark.parametrize("changes", AWKWARD)
def test_round_trip(changes: dict[str, object]) -> None:
    text = make(**changes).to_json()
    again = Manifest.from_json(text + b"   ", "x")
    assert again == make(**changes)
    assert again.to_json() == text
    assert list(again.splits) == list(make(**changes).splits)


def test_canonical_text() -> None:
    text = make().to_json()
    assert text == sealed(members(make()))
    assert text.isascii()
    assert b" " not in text
    assert text == replace(make(), recipe={"libraries": {"Pillow": "11.0"}, "resize": 256}).to_json()


def test_every_flipped_bit_is_noticed() -> None:
    text = make().to_json()
    for place in range(len(text)):
        for bit in range(8):
            damaged = text[:place] + bytes([text[place] ^ 1 << bit]) + text[place + 1 :]
            with pytest.raises(ContainerError, match=r"^here: "):
                Manifest.from_json(damaged, "here")


def test_every_truncation_is_noticed() -> None:
    text = make().to_json()
    for length in range(len(text)):
        with pytest.raises(ContainerError):
            Manifest.from_json(text[:length], "here")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "version must be 4, found 1, of an earlier iofast: remove it and pack again"),
        ({"version": True}, "found True"),
        ({"format": "webdataset"}, '"format": "iofast"'),
        ({"count": -1}, "count must be an integer"),
        ({"count": 3.0}, "count must be an integer"),
        ({"count": 1 << 60}, "count must be an integer"),
        ({"count": 2}, "split val"),
        ({"count": 4}, "the splits end at record 3"),
        ({"fields": ["jpg", "cls"]}, "not sorted"),
        ({"fields": ["jpg", "jpg"]}, "occurs twice"),
        ({"fields": ["JPG"]}, "field name"),
        ({"fields": "jpg"}, "JSON type list"),
        ({"fields": [f"f{i:04}" for i in range(1025)]}, "more than 1024"),
        ({"classes": ["a", "a"]}, "occurs twice"),
        ({"classes": ["a", 1]}, "JSON type str"),
        ({"classes": ["a" * 5000]}, "longer than 4096"),
        ({"class_order": "random"}, "class_order"),
        ({"splits": {}}, "splits are empty"),
        ({"splits": {"all": [[0, 3]], "train": [[0, 3]]}}, "is one of several"),
        ({"splits": {"a b": [[0, 3]]}}, "split name"),
        ({"splits": {"train": [[0, 2]], "val": [[1, 3]]}}, "overlap"),
        ({"splits": {"train": [[0, 1]], "val": [[2, 3]]}}, "gap"),
        ({"splits": {"train": [[2, 3], [0, 2]]}}, "do not rise"),
        ({"splits": {"train": [[0, 3]], "val": []}}, "missing"),
        ({"splits": {"train": [[0, 3, 4]]}}, "start, stop"),
        ({"splits": {"train": [[0, 3], [3, 3]]}}, "stop"),
        ({"recipe": []}, "JSON type dict"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"shards": [{"count": 2, "name": "", "size": 1}]}, "sum to 3"),
        ({"shards": [{"count": 3, "name": "../x", "size": 1}]}, "plain file name"),
        ({"shards": [{"count": 3, "name": "..", "size": 1}]}, "plain file name"),
        ({"shards": [{"count": 3, "name": "x"}]}, "count, name and size"),
        ({"shards": [{"count": 3, "name": "x", "size": -1}]}, "integer"),
        ({"fingerprint": "md5:00"}, "fingerprint"),
        ({"key_width": 21}, "key_width"),
        ({"recipe": {"x": float("inf")}}, "is not a JSON number"),
        ({"more": 1}, "unknown in the manifest: more"),
    ],
)
def test_wrong_members_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ContainerError, match=re.escape(message)):
        Manifest.from_json(sealed(members(make()) | change), "here")


def test_missing_member_is_named() -> None:
    parsed = members(make())
    del parsed["seed"]
    with pytest.raises(ContainerError, match="seed"):
        Manifest.from_json(sealed(parsed), "here")


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"seed":7', b'"seed":7,"seed":7'), (b"256", b"NaN"), (b"256", b"1e999"), (b"256", b"[" * 100_000)],
)
def test_twins_and_numbers_outside_json_are_refused(old: bytes, new: bytes) -> None:
    with pytest.raises(ContainerError):
        Manifest.from_json(make().to_json().replace(old, new), "here")


def test_an_unwritable_recipe_is_refused() -> None:
    for recipe in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises(ContainerError, match="JSON"):
            make(recipe=recipe).to_json()


def test_indices_of_a_split() -> None:
    splits = {"val": ((5, 6),), "train": ((0, 2), (3, 5)), "test": ((2, 3),)}
    manifest = Manifest(6, (), splits, FINGERPRINT, (Shard("", 6, 8192),))
    found = {name: manifest.indices(name).tolist() for name in (*splits, "all")}
    assert found == {"val": [5], "train": [0, 1, 3, 4], "test": [2], "all": [0, 1, 2, 3, 4, 5]}


def test_the_example_in_the_specification() -> None:
    example = re.search(r"^```json\n(.*)\n```$", FORMAT.read_text(), re.MULTILINE)
    assert example
    manifest = Manifest.from_json(example[1].encode(), "docs/format.md")
    assert manifest.classes == ("cat", "dog")
