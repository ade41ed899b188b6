"""Readers for files of other programs: tar shards, TFRecord, LMDB, MDS and beton.

Each format has one module that scans its files. A scan returns a `cached_index.ForeignIndex`, which is cached;
`reader.ForeignReader` reads records from it.
"""

from iofast.foreign.options import ForeignOptions as ForeignOptions
