"""Readers for files of other programs: tar shards, TFRecord, LMDB, Parquet and Arrow.

Each format has one module that scans its files. A scan returns a `cached_index.ForeignIndex`, which is cached;
`reader.ForeignReader` reads records from it.
"""

from iofast.foreign.options import ForeignOptions as ForeignOptions
