"""A listing as members and arrays of an index file (`cache.store`, `cache.load`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from iofast.containers.columns_file import Arrays
from iofast.remote.urls import RemotePath, is_url
from iofast.source.arrays import Strings
from iofast.source.listing import Column, ContainerRows, Source, Versions, Watched

_MEMBERS = ("kind", "classes", "class_order", "splits", "fields", "warnings", "notes")


def parts(source: Source) -> tuple[dict[str, object], Arrays]:
    """Everything in a listing except its root, for `cache.store`."""
    members: dict[str, object] = {name: getattr(source, name) for name in _MEMBERS}
    arrays: Arrays = {"labels": source.listed_labels, "stamps": source.watched.stamps}
    arrays |= {} if source.order is None else {"order": source.order}
    arrays |= _strings("paths", source.paths) | _strings("watched", source.watched.paths)
    for column in source.columns:
        arrays |= _strings(f"column.{column.field}", column.values) | {f"column.{column.field}.states": column.states}
    if source.container is not None:
        rows = source.container
        members["container"] = {"fields": dict(rows.fields), "upright": rows.upright, "state": rows.state}
        arrays["size"] = rows.sizes
    if source.objects is not None:
        members["objects"] = list(source.objects)
        for name, versions in source.objects.items():
            arrays |= {f"objects.{name}.size": versions.sizes} | _strings(f"objects.{name}", versions.etags)
    return members, arrays


def root_of(source: str | os.PathLike[str], kind: str) -> Path | str:
    """The root of the listing of `source`, of a kind of `Source.kind`."""
    name = os.fspath(source)
    place = str(RemotePath.of(name)) if is_url(name) else os.path.abspath(name)
    if kind == "manifest":
        place = os.path.dirname(place)
    return place if is_url(name) else Path(place)


def source_of(root: Path | str, members: Mapping[str, Any], arrays: Arrays) -> Source:
    """The listing that `parts` described. Raises `KeyError` or `TypeError` for other members; no value is checked."""

    def strings(name: str) -> Strings:
        return Strings(arrays[f"{name}.blob"].data, arrays[f"{name}.bounds"])

    rows, objects = members.get("container"), members.get("objects")
    return Source(
        root=root,
        kind=members["kind"],
        classes=None if members["classes"] is None else tuple(members["classes"]),
        splits=tuple((name, start, stop) for name, start, stop in members["splits"]),
        paths=strings("paths"),
        listed_labels=arrays["labels"],
        watched=Watched(strings("watched"), arrays["stamps"]),
        class_order=members["class_order"],
        columns=tuple(
            Column(field, strings(f"column.{field}"), arrays[f"column.{field}.states"]) for field in members["fields"]
        ),
        order=arrays.get("order"),
        container=None
        if rows is None
        else ContainerRows(rows["fields"], tuple(rows["upright"]), rows["state"], arrays["size"]),
        objects=None
        if objects is None
        else {name: Versions(arrays[f"objects.{name}.size"], strings(f"objects.{name}")) for name in objects},
        warnings=tuple(members["warnings"]),
        notes=tuple(members["notes"]),
    )


def _strings(name: str, strings: Strings) -> Arrays:
    return {f"{name}.blob": np.frombuffer(strings.blob, np.uint8), f"{name}.bounds": strings.bounds}
