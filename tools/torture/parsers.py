"""Nothing that a file may hold crashes what reads it, hangs it, fills the memory or, with a checksum, is read wrong.

Ten minutes each, on a build with address and undefined-behaviour sanitizers: manifest, index and pages of our own
containers, with other contents and right checksums; tar shards, TFRecords and LMDBs of other programs, made of odd
parts or damaged; indexes in the cache folder; annotations and EXIF blocks; images of many bits and channels. On the
usual build, because pyarrow throws C++ exceptions that the sanitizers do not survive: lists of images (CSV, TSV, JSON
lines, Parquet) and tables with images (Arrow, Parquet).

Everything that can be reached is read, decoded and verified. Only our errors may come, one line each that names the
file, of our own payloads also the record or the offset; what a checksum covers is right or an error; `verify` finds
what reading found. A step takes at most 20 seconds and, of Python and NumPy, 32 MiB (48 for tar, lists and tables).
"""

from tools.torture.drivers import PARSERS
from tools.torture.drivers.run import campaign

ARROW = ("table", "arrow")


def run() -> list[str]:
    rows = campaign(*(name for name in PARSERS if name not in ARROW))
    return rows + campaign(*ARROW, sanitized=False)[1:]
