"""The TFRecord container's Reader (docs/format.md section 6); its Writer is in `tfrecord_writer`.

The index has the place of every payload in its shard, so no Example is parsed: each payload is read with `pread` and
checked with its own checksum.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from iofast.containers.base import Entry
from iofast.containers.file_bytes import FileBytes
from iofast.containers.index import Rows
from iofast.containers.manifest import Manifest
from iofast.containers.shard_reader import ShardReader
from iofast.containers.tfrecord_framing import HEAD, frames, read_data
from iofast.containers.tfrecord_writer import TfrecordWriter, fields_of
from iofast.errors import ContainerError

__all__ = ["TfrecordReader", "TfrecordWriter", "is_named_so"]

# x.tfrecord, x-00000-of-00008.tfrecord; ImageNet's train-00000-of-01024; TensorFlow Datasets' x.tfrecord-00000-of-00008
_NAMES = re.compile(r".+(\.tfrecords?|\.tfrecords?-\d+-of-\d+|-\d{5,}-of-\d{5,})(\.gz|\.gzip|\.zlib|\.z)?", re.ASCII)


def is_named_so(name: str) -> bool:
    """Whether a file of this name (in lower case) is a TFRecord, perhaps a compressed one, which readers refuse."""
    return _NAMES.fullmatch(name) is not None


class TfrecordReader(ShardReader):
    """Random access to a set of TFRecord shards that iofast wrote; see `ShardReader`."""

    container = "tfrecord"

    def examples(self, indices: NDArray[np.int64]) -> Rows:
        """Places of whole records: `file`, `offset` and `length` with framing, `crc` of the data; (N,), structured.

        Raises `IndexError` for an index out of range, `ContainerError` for a place outside the shards.
        """
        opened = self._open()
        rows = opened.index.rows(np.ascontiguousarray(indices, np.int64).reshape(-1))
        places, sizes = rows["place"][:, -1], opened.sizes()
        file = np.minimum(places["file"], len(sizes) - 1)
        rest = sizes[file] - np.minimum(places["offset"], sizes[file])
        wrong = (places["file"] != file) | (places["length"] > rest)
        if wrong.any():
            row = rows[int(np.argmax(wrong))]
            raise ContainerError(f"{self.path}: the index puts the record of position {row['position']} outside")
        return places.copy()

    def walk(self, shard: int) -> Iterator[Entry]:
        """The payloads in the Examples of a shard; each record's CRC32C is checked; see `Reader.walk`."""
        file = FileBytes(self._files().paths[shard])
        for frame in frames(file):
            data = read_data(file, frame)
            try:
                found = fields_of(data)
            except ContainerError as error:
                raise ContainerError(f"{file.path}: the record at offset {frame.offset - HEAD}: {error}") from None
            for name, span in found:
                yield Entry(name, frame.offset + span.start, span.stop - span.start)

    def _groups(self, manifest: Manifest) -> Sequence[str]:
        return (*manifest.fields, "")
