"""Nothing that other programs may have written crashes the readers, hangs them or fills the memory.

Ten minutes each, on a build with address and undefined-behaviour sanitizers: tar shards (USTAR, GNU and pax members),
TFRecord framing and Examples, LMDBs of images and Datums, MosaicML's MDS and FFCV's beton. They are made of odd parts,
or sound and then damaged in known places or anywhere. Everything that can be reached is read, decoded and verified.
Only our errors may come, one line each that names the file; images in TFRecords, which have checksums, are right or an
error; `verify` finds what reading found; a step takes at most 20 seconds and, of Python and NumPy, 32 MiB (tar and MDS:
48; a compressed shard of MDS may say that it unpacks to a GiB, which is the limit stated there).

A run that was interrupted goes on where it was, on the same commit.
"""

from __future__ import annotations

from tools.torture.parsing import campaign


def run() -> list[str]:
    return campaign.run("tar", "tfrecord", "lmdb", "mds", "beton")
