"""Write MDS folders and beton files by their published layouts, with `struct` alone."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_FIXED = {"int": "<q", "uint8": "<B", "int16": "<h", "int32": "<i", "float32": "<f", "float64": "<d"}


def mds_value(encoding: str, value: Any) -> bytes:
    if encoding in _FIXED:
        return struct.pack(_FIXED[encoding], value)
    if encoding == "str":
        return str(value).encode()
    if encoding == "json":
        return json.dumps(value).encode()
    return bytes(value)


def write_mds(
    folder: Path,
    columns: Mapping[str, str],
    samples: Sequence[Mapping[str, Any]],
    *,
    per_shard: int = 4,
    compression: str | None = None,
    pack: Callable[[bytes], bytes] = bytes,
) -> Path:
    """Write a folder with shards of `per_shard` samples and its index.json."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(columns)
    config = {
        "column_encodings": [columns[name] for name in names],
        "column_names": names,
        "column_sizes": [struct.calcsize(_FIXED[columns[name]]) if columns[name] in _FIXED else None for name in names],
        "compression": compression,
        "format": "mds",
        "hashes": [],
        "size_limit": 1 << 26,
        "version": 2,
    }
    text = json.dumps(config, sort_keys=True).encode()
    shards = []
    for number, start in enumerate(range(0, len(samples), per_shard)):
        bodies = []
        for sample in samples[start : start + per_shard]:
            values = [mds_value(columns[name], sample[name]) for name in names]
            heads = [
                struct.pack("<I", len(value))
                for name, value in zip(names, values, strict=True)
                if columns[name] not in _FIXED
            ]
            bodies.append(b"".join(heads + values))
        at = 4 + 4 * (len(bodies) + 1) + len(text)
        offsets = [at + sum(map(len, bodies[:i])) for i in range(len(bodies) + 1)]
        data = struct.pack(f"<I{len(offsets)}I", len(bodies), *offsets) + text + b"".join(bodies)
        name = f"shard.{number:05d}.mds"
        packed = None
        if compression is None:
            (folder / name).write_bytes(data)
        else:
            extension = compression.partition(":")[0]
            (folder / f"{name}.{extension}").write_bytes(pack(data))
            packed = {"basename": f"{name}.{extension}", "bytes": len(pack(data)), "hashes": {}}
        raw = {"basename": name, "bytes": len(data), "hashes": {}}
        shards.append({**config, "raw_data": raw, "samples": len(bodies), "zip_data": packed})
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}, sort_keys=True))
    return folder


# type, bytes in a sample's row, alignment in that row as with NumPy's align=True
_TYPES = {"float": (0, 8, 8), "int": (1, 8, 8), "rgb": (2, 13, 1), "bytes": (3, 16, 1), "ndarray": (4, 8, 8)}
_TYPES |= {"json": (5, 16, 1), "custom": (255, 8, 8)}


def write_beton(
    path: Path,
    fields: Mapping[str, str],
    samples: Sequence[Mapping[str, Any]],
    *,
    mode: int = 0,
    version: int = 2,
    finished: bool = True,
    page: int = 1 << 12,
) -> Path:
    """Write a beton file. An rgb value is (width, height, JPEG bytes); pages are smaller than FFCV's."""
    places, at = {}, 0
    for name, kind in fields.items():
        _, size, align = _TYPES[kind]
        at += -at % align
        places[name] = at
        at += size
    step = at + -at % max(_TYPES[kind][2] for kind in fields.values())
    descriptions = b"".join(
        struct.pack("<B16s1024s", _TYPES[kind][0], name.encode(), b"") for name, kind in fields.items()
    )
    rows_at = 24 + len(descriptions)
    data_at = rows_at + step * len(samples)
    data_at += -data_at % page
    rows, data, allocations = bytearray(step * len(samples)), bytearray(), []

    def store(sample: int, payload: bytes) -> int:
        place = data_at + len(data)
        data.extend(payload)
        allocations.append((sample, place, len(payload)))
        return place

    for number, sample in enumerate(samples):
        for name, kind in fields.items():
            value, at = sample[name], number * step + places[name]
            if kind in ("int", "float"):
                struct.pack_into("<q" if kind == "int" else "<d", rows, at, value)
            elif kind == "rgb":
                struct.pack_into("<BHHQ", rows, at, mode, *value[:2], store(number, value[2]))
            elif kind in ("bytes", "json"):
                payload = value if kind == "bytes" else json.dumps(value).encode() + b"\0"
                struct.pack_into("<QQ", rows, at, store(number, payload), len(payload))
            else:
                struct.pack_into("<Q", rows, at, store(number, value))
    data.extend(bytes(-len(data) % page))
    head = struct.pack("<HHIQQ", version, len(fields), page, len(samples), (data_at + len(data)) if finished else 0)
    front = head + descriptions + rows
    table = b"".join(struct.pack("<QQQ", *each) for each in allocations)
    path.write_bytes(front + bytes(data_at - len(front)) + data + table)
    return path
