"""Arrow files whose values are as they are in memory: others' own, and the copies that we make of Parquet files.

A Parquet file has its values in compressed pages, so that one image cannot be read alone. `datasets` copies it into an
Arrow file in its cache before training, and so do we: row by row group, with a few rows in memory.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast import owned
from iofast.bars import open_bar
from iofast.containers.container_suffixes import ARROW, PARQUET
from iofast.errors import ContainerError, SourceError, because, reason_of, unreadable
from iofast.source.cache import SETTLED, locked
from iofast.source.listing import printable
from iofast.source.table import arrow, check_file, opened, row_batches

ROWS = 64  # of a batch: some MB of photographs
PAGES = {"buffer_size": 1 << 20, "pre_buffer": False}  # read one by one: a row group may be larger than memory
MAGIC = b"ARROW1"  # an Arrow file with an index at its end; `datasets` writes streams, without one


def is_plain(path: str) -> bool:
    """Whether a table is read where it is."""
    return not path.lower().endswith(PARQUET)


def read_instead(paths: Sequence[str], stamped: NDArray[np.int64]) -> list[str]:
    """The file to read for each table with these stamps: itself, or a copy, which may be missing.

    Raises `SourceError` if there is no folder for copies.
    """
    if all(map(is_plain, paths)):
        return [*paths]
    folder = owned.cache_folder()
    if folder is None:
        raise SourceError(
            f"{paths[0]} needs a folder for its copy: set XDG_CACHE_HOME to one that only you may write to"
        )
    read = []
    for path, (size, changed) in zip(paths, stamped[: len(paths)].tolist(), strict=True):
        words = os.fsencode(f"{os.path.realpath(path)}\0{size}\0{changed}")
        copy = folder / f"{hashlib.sha256(words).hexdigest()[:32]}-{Path(path).stem[:100]}{ARROW}"
        read.append(path if is_plain(path) else os.fspath(copy))
    return read


def copies() -> list[tuple[Path, str]]:
    """All copies that were made, each with the name of its original."""
    folder = owned.cache_folder()
    found = [] if folder is None else sorted(folder.glob(f"*-*{ARROW}"))
    return [(path, path.stem.partition("-")[2] + PARQUET) for path in found]


def plain_copies(paths: Sequence[str], stamped: NDArray[np.int64]) -> list[str]:
    """The files to read in place of tables: Parquet files are copied first, unless a copy is there already.

    Several processes may call this at once: one copies a file, the others wait. Raises `SourceError` for a file that
    cannot be read or a full disk; then nothing is left.
    """
    read = read_instead(paths, stamped)
    missing = [
        (path, copy)
        for path, copy, changed in zip(paths, read, stamped[: len(paths), 1].tolist(), strict=True)
        if path != copy and not _is_there(copy, changed)
    ]
    if missing:
        rows = 0
        for path, _ in missing:
            with opened(path) as file:
                rows += file.metadata.num_rows
        with open_bar(rows, " rows", "unpacking Parquet, once", delay=1) as bar:
            for path, copy in missing:
                _copy(path, Path(copy), bar.update)
    return read


@contextlib.contextmanager
def plain_table(path: str, shown: str) -> Iterator[tuple[Any, int, Iterator[Any]]]:
    """Schema of an Arrow file, the address of its first byte in memory, and its batches of rows.

    `shown` is what messages call the file. Raises `ContainerError` for bytes that are no such file, also while
    batches are taken.
    """
    pyarrow = arrow(shown)
    try:
        check_file(path)
        with open(path, "rb") as file, pyarrow.memory_map(path) as mapped:
            data = mapped.read_buffer()
            is_file = file.read(len(MAGIC)) == MAGIC
            reader = (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(pyarrow.BufferReader(data))
            yield reader.schema, data.address, _batches(reader, is_file)
    except pyarrow.ArrowException as error:
        raise ContainerError(f"{shown} is not an Arrow file that can be read: {printable(reason_of(error))}") from None
    except OSError as error:
        raise unreadable(shown, error) from None


def _batches(reader: Any, is_file: bool) -> Iterator[Any]:
    batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
    for batch in batches:
        batch.validate()  # sizes of buffers; what is in them, only where it is used
        yield batch


def _is_there(copy: str, changed: int) -> bool:
    """Whether there is a copy that was made long enough after the last change to have seen all of it."""
    try:
        return os.stat(copy).st_mtime_ns >= changed + SETTLED
    except OSError:
        return False


def _copy(path: str, copy: Path, copied: Callable[[int], object]) -> None:
    with locked(copy):
        if _is_there(os.fspath(copy), os.stat(path).st_mtime_ns):
            return  # another process has made it
        try:
            with (
                opened(path, **PAGES) as file,
                owned.writing(copy, 0o600) as out,
                arrow(path).ipc.new_stream(out, file.schema_arrow) as stream,
            ):
                for batch in row_batches(file, ROWS):
                    stream.write_batch(batch)
                    copied(batch.num_rows)
        except OSError as error:
            raise SourceError(f"{path} cannot be copied to {copy}: {because(error)}") from None
