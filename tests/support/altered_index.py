"""An index with other values, whose checksums are right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from iofast.containers.columns import type_of, usual_of
from iofast.containers.columns_file import encode, read_header
from iofast.containers.shards import read_manifest


def alter(container: Path, row: int, values: Mapping[str, int]) -> None:
    """Give a record of a set of one piece other values in these columns."""
    index, manifest = container.with_name(f"{container.name}.index"), read_manifest(container)
    data, ((size, _),) = index.read_bytes(), manifest.index
    header = read_header(lambda start, stop: data[start:stop], 0, size, "index")
    columns = {name: np.frombuffer(data, *own[:3]).copy() for name, own in header.columns.items()}
    for name, value in values.items():
        usual = np.arange(manifest.count) if name == "position" else np.full(manifest.count, usual_of(name))
        columns.setdefault(name, usual.astype(type_of(name)))[row] = value
    piece = b"".join(encode(header.members, columns))
    seal = read_header(lambda start, stop: piece[start:stop], 0, len(piece), "index").seal
    index.write_bytes(piece)
    changed = replace(manifest, index=((len(piece), seal),))
    container.with_name(f"{container.name}.manifest").write_bytes(changed.to_json())
