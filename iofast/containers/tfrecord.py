"""The TFRecord container's Reader (docs/format.md section 6); its Writer is in `tfrecord_writer`.

The index has the place of every payload in its shard, so no Example is parsed: each payload is read with `pread` and
checked with its own checksum.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from iofast.containers.base import Entry
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

    def walk(self, shard: int) -> Iterator[Entry]:
        """The payloads in the Examples of a shard; each record's CRC32C is checked; see `Reader.walk`."""
        file = self._files().anew(shard)
        for frame in frames(file):
            data = read_data(file, frame)
            try:
                found = fields_of(data)
            except ContainerError as error:
                raise ContainerError(f"{file.path}: the record at offset {frame.offset - HEAD}: {error}") from None
            for name, span in found:
                yield Entry(name, frame.offset + span.start, span.stop - span.start)
