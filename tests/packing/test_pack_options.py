"""PackOptions checks itself: each value, and each combination, that means nothing is one line of error."""

import re
from typing import Any

import pytest

from iofast.containers.targets import target_of
from iofast.errors import OptionError, TargetError
from iofast.option import QUALITY, options_of
from iofast.packing import PackOptions
from iofast.packing.option_fields import OrderFields, PixelFields, SampleFields
from iofast.packing.plan import PackPlan, shared_settings
from iofast.source import SourceOptions

REFUSED: list[tuple[dict[str, Any], str]] = [
    # values
    *(({"resize": value}, "resize") for value in (0, 2.5, True, "256")),
    ({"mode": "crop"}, "mode"),
    *(({"resize": 256, "mode": value}, "mode") for value in ("none", "sideways")),
    ({"filter": "gauss"}, "filter"),
    ({"format": "gif"}, "format"),
    *(({"quality": value}, "quality") for value in (0, 101, "90")),
    ({"resize": 9, "reducing_gap": 0.5}, "reducing_gap"),
    ({"max_pixels": 0}, "max_pixels must be"),
    ({"shuffle": -1}, "shuffle must be"),
    ({"class_order": "random"}, "class_order must be one of"),
    *(({"workers": value}, "workers must be") for value in (0, 1025)),
    *(({"max_errors": value}, "max_errors must be a number") for value in ("-1", "101%", "many")),
    *(({"restart": value}, "restart must be auto, none or") for value in ("--5", "-5", "many", "2.5", "", "65536")),
    *(({"notes": value}, "notes must") for value in ({"a": {1}}, {"quality": 1}, {"x": float("nan")}, "a")),
    *(({"shard_size": value}, "shard_size must") for value in ("", "GB", "-1", "1XB", "0", "1e9", "10MBit", True, 0.5)),
    ({"shard_records": 0}, "shard_records must be"),
    ({"label_base": 2}, "label_base must be"),
    ({"split": "val=0.1", "split_seed": -1}, "split_seed must be"),
    *(({"split": value}, "split") for value in ("val", "val=x", "val=0", "val=-0.1", "val=1", "val=nan", "val=inf")),
    *(({"split": value}, "split") for value in ("", "val=0.6,test=0.4", "train=0.5", "all=0.1", "a b=0.1", {}, 5)),
    ({"split": "val=0.1, val=0.2"}, "split names 'val' twice: expected each name once, found 'val=0.1, val=0.2'"),
    *(({"part": value}, "part must be i/n") for value in ("0/3", "4/3", "1/0", "1", "a/b", "1/2/3", "-1/3", " 1/3")),
    ({"part": "1/10000000"}, "part must be i/n"),
    ({"on": "spark"}, "on must be ray or ray://host:port, found 'spark'"),
    ({"on": "ray", "ray_cpus": 0}, "ray_cpus must be"),
    # combinations
    ({"shard_size": 9, "shard_records": 9}, "give one of them"),
    ({"part": "1/2", "finish": True}, "give one of them"),
    ({"dry_run": True, "part": "1/2"}, "leave out part and finish"),
    *(({"on": "ray", **each}, "leave out part,") for each in ({"part": "1/2"}, {"finish": True}, {"dry_run": True})),
    ({"on": "ray", "workers": 2}, "give ray_cpus= instead"),
    # without effect beside the others
    ({"quality": 80, "format": "png", "resize": 16}, "quality=80 has no effect: expected format=jpeg or webp"),
    ({"quality": 90, "format": "rgb"}, "found format=rgb"),
    ({"quality": 80}, "found format=keep, which changes no pixel here"),
    ({"subsampling": "444", "format": "webp"}, "subsampling=444 has no effect: expected format=jpeg"),
    ({"restart": 4, "format": "png"}, "restart=4 has no effect: expected format=jpeg or keep"),
    ({"restart": "none", "format": "rgb"}, "restart=none has no effect"),
    ({"filter": "box"}, "filter=box has no effect: expected resize= beside it, found none"),
    ({"only_shrink": True}, "only_shrink=True has no effect: expected resize="),
    ({"reducing_gap": 0, "format": "jpeg"}, "reducing_gap=0 has no effect: expected resize="),
    ({"pad_color": "white", "resize": 16}, "pad_color=white has no effect: expected mode=pad beside it, found"),
    ({"mask_fill": 255, "resize": 16}, "mask_fill=255 has no effect: expected mode=pad"),
    ({"check": "end", "format": "jpeg"}, "check=end has no effect: expected format=keep"),
    ({"icc": "srgb", "format": "npy"}, "icc=srgb has no effect: expected a format other than npy"),
    ({"box_format": "xywh"}, "box_format=xywh has no effect: expected boxes="),
    ({"split_seed": 0}, "split_seed=0 has no effect: expected split="),
    ({"ray_cpus": 2}, "ray_cpus=2 has no effect: expected on="),
    ({"finish_when_complete": True}, "finish_when_complete=True has no effect: expected part="),
]  # fmt: skip
ACCEPTED: list[dict[str, Any]] = [
    {"quality": 80, "format": "webp", "filter": "box", "only_shrink": True, "reducing_gap": 3, "resize": 16},
    {"quality": 80, "subsampling": "444", "format": "keep", "resize": 16},
    {"quality": 80, "subsampling": "444", "icc": "srgb"},
    {"quality": 80, "subsampling": "422", "background": "black"},
    {"restart": "none"},
    {"format": "jpeg", "restart": 2},
    {"resize": 16, "mode": "pad", "pad_color": "white", "mask_fill": 0},
    {"split": "val=0.5", "split_seed": 0},
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=re.escape(words)) as caught:
        PackOptions(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", ACCEPTED)
def test_accepted(options: dict[str, Any]) -> None:
    PackOptions(**options)


@pytest.mark.parametrize(
    ("limit", "images", "allowed"),
    [
        *(("1%", 50, 0), ("1%", 99, 0), ("1%", 100, 1), ("29%", 100, 29), ("0.5%", 1000, 5), (3, 10, 3), ("0", 10, 0)),
        # a few are allowed by default, but never most
        *((None, 1, 0), (None, 2, 1), (None, 5, 2), (None, 19, 9), (None, 20, 10), (None, 1000, 10), (None, 1100, 11)),
    ],
)
def test_max_errors(limit: int | str | None, images: int, allowed: int) -> None:
    assert PackOptions(max_errors=limit).allowed_errors(images) == allowed


RESIZED: dict[str, Any] = {"resize": 16, "boxes": "boxes.json", "fields": "boxes.json"}
PADDED = {**RESIZED, "mode": "pad"}
OTHERS: dict[str, tuple[dict[str, Any], Any, str]] = {  # option -> options beside it, another value, how it is named
    "resize": (RESIZED, 64, "resize=16, not 64"),
    "mode": (RESIZED, "long", "mode=short, not long"),
    "only_shrink": (RESIZED, True, "only_shrink=False, not True"),
    "filter": (RESIZED, "lanczos", "filter=bilinear, not lanczos"),
    "format": (RESIZED, "webp", "format=jpeg, not webp"),
    "quality": (RESIZED, 50, f"quality={QUALITY}, not 50"),
    "subsampling": (RESIZED, "444", "subsampling=420, not 444"),
    "restart": (RESIZED, "none", "restart=auto, not 0"),
    "reducing_gap": (RESIZED, 0, "reducing_gap=2.0, not 0"),
    "max_pixels": (RESIZED, 9, "max_pixels="),
    "pad_color": (PADDED, "white", "pad_color="),
    "icc": (RESIZED, "drop", "icc="),
    "background": (RESIZED, "black", "background="),
    "check": ({}, "end", "check=None, not end"),
    "truncated": (RESIZED, "accept", "truncated=None, not accept"),
    "min_size": (RESIZED, 9, "min_size=None, not 9"),
    "max_aspect": (RESIZED, 3, "max_aspect=None, not 3"),
    "fields": (RESIZED, "boxes.json,txt", "fields="),
    "boxes": ({"resize": 16}, "boxes.json", "boxes=None, not boxes.json"),
    "box_format": (RESIZED, "xywh", "box_format=None, not xywh"),
    "keypoints": (RESIZED, "boxes.json", "keypoints=None, not boxes.json"),
    "upright_annotations": (RESIZED, True, "upright_annotations=None, not True"),
    "mask_fill": (PADDED, 255, "mask_fill=None, not 255"),
    "notes": (RESIZED, {"a": 1}, "a None, not 1"),
    "shuffle": (RESIZED, 1, "shuffle=None, not 1"),
    "split": (RESIZED, "val=0.5", "split="),
    "split_seed": ({"split": "val=0.5"}, 1, "split_seed=0, not 1"),
    "class_order": (RESIZED, "natural", "class_order=lexicographic, not natural"),
    **{f"{name}_column": ({}, "x", f"{name}_column=") for name in ("path", "label", "split", "mask", "file")},
    "only": ({}, "x", "only="),
    "shard_records": ({}, 5, "shard_records=None, not 5"),
    "shard_size": ({}, 5000, "shard_size=1000000000, not 5000"),
    "label_base": ({}, 1, "label_base=None, not 1"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_work_begun_with_another_value_is_not_resumed(name: str) -> None:
    beside, other, words = OTHERS[name]

    def plan(options: dict[str, Any]) -> PackPlan:
        return PackPlan(9, (), "", shared_settings(["x"], PackOptions(**options), target_of("out.tar")))

    plan(beside).check_same(plan(beside), "x")
    with pytest.raises(TargetError, match=re.escape(words)):
        plan({**beside, name: other}).check_same(plan(beside), "x")


def test_every_option_that_shapes_records_is_among_them() -> None:
    shaping = {each.name for each in options_of([PixelFields, SampleFields, SourceOptions, OrderFields])}
    assert shaping - {"max_memory", "foreign"} <= OTHERS.keys()


def test_a_number_of_mcus_may_be_a_text() -> None:
    assert PackOptions(restart="8").recipe().restart == PackOptions(restart=8).recipe().restart == 8
