"""Nothing that other programs may have written crashes the readers, hangs them or fills the memory.

Ten minutes each, on a build with address and undefined-behaviour sanitizers: tar shards (USTAR, GNU and pax members),
TFRecord framing and Examples, LMDBs of images. They are made of odd parts, or sound and then damaged in
known places or anywhere. Everything that can be reached is read, decoded and verified.

Only our errors may come, one line each that names the file. Images in TFRecords, which have checksums, are right or an
error; `verify` finds what reading found. A step takes at most 20 seconds and, of Python and NumPy, 32 MiB (tar: 48).
"""

from __future__ import annotations

from tools.torture.drivers import campaign


def run() -> list[str]:
    return campaign.run("tar", "tfrecord", "lmdb")
