"""MosaicML's MDS (`index.json` and shards) as a Reader. Pickled columns are never loaded.

A shard: u32 N, u32 × (N + 1) offsets of its samples, its configuration as JSON, then the samples. A sample: a u32 for
the size of each column without a fixed size, then the values of all columns. All little-endian.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.containers.manifest import MAX_FIELDS, WHOLE
from iofast.containers.open_files import OpenFiles
from iofast.errors import ContainerError, unreadable
from iofast.foreign.cached_index import MAX_RECORDS, ForeignIndex, Format
from iofast.foreign.columns import Fetch, TableColumn, fetch_from, index_of
from iofast.foreign.options import ForeignOptions
from iofast.foreign.unpacked import PackedFiles
from iofast.source.listing import split_rank
from iofast.source.text_files import check_file

INDEX = "index.json"
MAX_INDEX = 256 << 20  # bytes of an index.json: a million shards
MAX_SHARDS = 1_000_000

_NUMBERS = {"int": "<i8", "uint8": "|u1", "int8": "|i1"}
_NUMBERS |= {f"{kind}{8 * size}": f"<{kind[0]}{size}" for kind in ("uint", "int", "float") for size in (2, 4, 8)}
_KINDS = {"jpeg": "image", "png": "image", "bytes": "bytes", "str": "text", "json": "json"}
_KINDS |= dict.fromkeys(("str_int", "str_float", "str_decimal"), "text")
_NOT_READ = {"pkl": "pickled data, which is never loaded", "pil": "raw pixels", "ndarray": "arrays"}


@dataclass(frozen=True, slots=True)
class MdsShard:
    """One shard of an `index.json`, validated."""

    path: str  # the file that exists: raw or compressed
    size: int  # bytes, uncompressed
    compression: str | None  # of that file
    samples: int
    columns: tuple[tuple[str, str, int | None], ...]  # name, encoding, fixed size


def find_index(folder: Path) -> dict[str, Path] | None:
    """Map splits to their `index.json`, for an MDS folder or a folder of MDS folders; None for any other folder."""
    if _is_index(folder / INDEX):
        return {WHOLE: folder / INDEX}
    splits = {}
    if not (folder / INDEX).exists():
        for entry in sorted(os.scandir(folder), key=lambda entry: split_rank(entry.name)):
            if not entry.is_dir():
                continue
            if not _is_index(Path(entry.path) / INDEX):
                return None  # not a data set of MDS
            splits[entry.name] = Path(entry.path) / INDEX
    return splits or None


class MdsFolder(Format):
    """The shards in the `index.json` files of a folder; sub-folders are splits. `found`: from `find_index`."""

    name = "mds"
    names_are_fixed = True

    def __init__(self, folder: Path, found: Mapping[str, Path]) -> None:
        self.folder, self.shards, self.splits = os.fspath(folder), list[MdsShard](), list[tuple[str, int, int]]()
        count = 0
        for split, file in found.items():
            own = read_index(file)
            self.shards += own
            samples = sum(shard.samples for shard in own)
            self.splits.append((split, count, count + samples))
            count += samples
        if not self.shards:
            raise ContainerError(f"{folder}: its MDS index has no samples")
        if count > MAX_RECORDS:
            raise ContainerError(f"{folder} has {count} samples, more than {MAX_RECORDS}")
        super().__init__([shard.path for shard in self.shards], ForeignOptions(), list(map(os.fspath, found.values())))

    def sizes(self, stamped: NDArray[np.int64]) -> NDArray[np.int64]:
        """Uncompressed sizes. Raises `ContainerError` for a raw shard whose size differs from its index."""
        for shard, (size, _) in zip(self.shards, stamped.tolist(), strict=False):  # `index.json` comes last
            if shard.compression is None and size != shard.size:
                raise ContainerError(
                    f"{shard.path} was cut off: expected {shard.size} bytes (index.json), found {size}"
                )
        return np.array([shard.size for shard in self.shards], np.int64)

    def files(self, stamped: NDArray[np.int64]) -> OpenFiles:
        """The shards, unpacked where they are compressed."""
        packed = {number: (each.compression, each.size) for number, each in enumerate(self.shards) if each.compression}
        return PackedFiles(self.paths, stamped, packed)

    def scan(self, stamped: NDArray[np.int64]) -> ForeignIndex:
        """Read the offsets and sizes in all shards."""
        self.sizes(stamped)
        files = self.files(stamped)
        fetch = fetch_from(files)
        read, left_out = _columns(self.shards, files, fetch)
        samples = np.array([shard.samples for shard in self.shards], np.int64)
        return index_of(read, np.cumsum(samples) - samples, fetch, self.splits, left_out)


def read_index(file: Path) -> list[MdsShard]:
    """The shards listed in an `index.json`. Raises `ContainerError`, naming the file."""
    try:
        check_file(file)
        if file.stat().st_size > MAX_INDEX:
            raise ContainerError(f"it has more than {MAX_INDEX} bytes")
        parsed = json.loads(file.read_bytes())
        if not isinstance(parsed, dict) or parsed.get("version") != 2 or not isinstance(parsed.get("shards"), list):
            raise ContainerError("it is no MDS index of version 2")
        if len(parsed["shards"]) > MAX_SHARDS:
            raise ContainerError(f"it has more than {MAX_SHARDS} shards")
        shards = [_shard(file.parent, number, entry) for number, entry in enumerate(parsed["shards"])]
    except OSError as error:
        raise unreadable(file, error) from None
    except ContainerError as error:
        raise ContainerError(f"{file}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ContainerError(f"{file} is not JSON: {error}") from None
    return [shard for shard in shards if shard.samples]


def _shard(folder: Path, number: int, entry: Any) -> MdsShard:
    try:
        form, version = entry["format"], entry["version"]
        if (form, version) != ("mds", 2):
            raise ContainerError(f"shard {number} is of format {form!r:.40} version {version!r:.40}, expected mds 2")
        names, encodings, sizes = (entry[f"column_{part}"] for part in ("names", "encodings", "sizes"))
        columns = tuple(zip(names, encodings, sizes, strict=True))
        raw, packed, compression = entry["raw_data"], entry["zip_data"], entry["compression"]
        samples, size = _whole(entry["samples"]), _whole(raw["bytes"])
        for name, encoding, fixed in columns:
            if not (isinstance(name, str) and isinstance(encoding, str)) or (fixed is not None and _whole(fixed) < 1):
                raise ContainerError(f"shard {number} has an impossible column {name!r:.40}")
        path = folder / _relative(raw["basename"])
        if not path.exists() and packed is not None:
            return MdsShard(os.fspath(folder / _relative(packed["basename"])), size, str(compression), samples, columns)
    except (KeyError, TypeError, AttributeError) as error:
        raise ContainerError(f"the description of shard {number} is invalid: {error!r:.80}") from None
    except ValueError as error:
        raise ContainerError(f"shard {number}: {error}") from None
    if len(columns) > MAX_FIELDS or not columns:
        raise ContainerError(f"shard {number} has {len(columns)} columns, expected 1 to {MAX_FIELDS}")
    return MdsShard(os.fspath(path), size, None, samples, columns)


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 32:
        raise ContainerError(f"{value!r:.40} is not a whole number below 2^32")
    return value


def _relative(name: object) -> str:
    """Check that the path of a shard stays in the folder of its index."""
    if not isinstance(name, str) or not name or "\0" in name or name.startswith("/") or ".." in name.split("/"):
        raise ContainerError(f"the name of a shard leads out of its folder: {name!r:.80}")
    return name


def _is_index(file: Path) -> bool:
    try:
        check_file(file)
        with file.open("rb") as opened:
            return b'"shards"' in opened.read(1 << 12)
    except OSError:
        return False


def _columns(shards: Sequence[MdsShard], files: OpenFiles, fetch: Fetch) -> tuple[list[TableColumn], list[str]]:
    """The readable columns, and a sentence for each other one."""
    columns = shards[0].columns
    offsets: list[NDArray[np.int64]] = []
    lengths: list[NDArray[np.int64]] = []
    for number, shard in enumerate(shards):
        if shard.columns != columns:
            raise ContainerError(f"{shard.path} has other columns than {shards[0].path}")
        start, size = _places(shard, number, files, fetch)
        offsets.append(start)
        lengths.append(size)
    file = np.repeat(np.arange(len(shards), dtype=np.uint32), [shard.samples for shard in shards])
    offset, length = np.concatenate(offsets), np.concatenate(lengths)
    read, left_out = [], []
    for place, (name, encoding, _) in enumerate(columns):
        base = encoding.partition(":")[0]
        kind = "number" if base in _NUMBERS else _KINDS.get(base)
        if kind is None:
            why = _NOT_READ.get(base, "an encoding that is not known")
            left_out.append(f"column {name!r} ({encoding}) is left out: {why}")
            continue
        dtype = _NUMBERS.get(base, "|u1")
        if kind == "number" and (length[:, place] != np.dtype(dtype).itemsize).any():
            raise ContainerError(f"{shards[0].path}: column {name!r} is {encoding}, but its values have other sizes")
        start, size = offset[:, place].astype(np.uint64), length[:, place].astype(np.uint64)
        read.append(TableColumn(name, kind, file, start, size, dtype))  # type: ignore[arg-type]
    if not read:
        raise ContainerError(f"{shards[0].path}: no column can be read: {'; '.join(left_out)}")
    return read, left_out


def _places(
    shard: MdsShard, number: int, files: OpenFiles, fetch: Fetch
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offset and length of every value of a shard, (samples, columns) each."""
    count = int.from_bytes(fetch(number, 0, 4), "little")
    head = 4 * (count + 2)
    if count != shard.samples or head > shard.size:
        raise ContainerError(f"{shard.path}: expected {shard.samples} samples (index.json), found {count} at offset 0")
    bounds = np.frombuffer(fetch(number, 4, 4 * (count + 1)), "<u4").astype(np.int64)
    sized = [place for place, column in enumerate(shard.columns) if column[2] is None]
    fixed = [column[2] or 0 for column in shard.columns]
    least = 4 * len(sized) + sum(fixed)
    if bounds[0] < head or bounds[-1] > shard.size or (np.diff(bounds) < least).any():
        raise ContainerError(f"{shard.path}: its offsets (from offset 4 on) do not rise within {shard.size} bytes")
    lengths = np.tile(np.array(fixed, np.int64), (count, 1))
    if sized:
        opened = files.get(number)
        if opened is not None:
            sizes = opened.gather(bounds[:-1], 4 * len(sized))
        else:
            data = np.frombuffer(fetch(number, 0, shard.size), np.uint8)
            sizes = data[bounds[:-1, None] + np.arange(4 * len(sized))]
        lengths[:, sized] = np.ascontiguousarray(sizes).view("<u4")
    starts = bounds[:-1, None] + 4 * len(sized) + np.cumsum(lengths, 1) - lengths
    wrong = np.flatnonzero(starts[:, -1] + lengths[:, -1] != bounds[1:])
    if len(wrong):
        row = int(wrong[0])
        raise ContainerError(f"{shard.path}: sizes in sample {row} at offset {bounds[row]} do not add up to its length")
    return starts, lengths
