"""Files of other programs as Readers: tar shards, TFRecords, LMDBs, MDS and beton.

Each format has one file that scans it. What a scan finds is an `index.ForeignIndex`, kept in the user's cache, and
`reader.ForeignReader` reads by it.
"""

from iofast.foreign.options import ForeignOptions as ForeignOptions
