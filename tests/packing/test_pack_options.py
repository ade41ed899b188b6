"""PackOptions checks itself: each value, and each combination, that means nothing is one line of error."""

from __future__ import annotations

import re
from typing import Any

import pytest

from iofast.errors import OptionError
from iofast.packing import PackOptions

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


def test_a_number_of_mcus_may_be_a_text() -> None:
    assert PackOptions(restart="8").recipe().restart == PackOptions(restart=8).recipe().restart == 8
