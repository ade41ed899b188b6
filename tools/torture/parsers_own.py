"""Nothing in a container of ours, or of its making, crashes the reader, hangs it, fills the memory or is read wrong.

Ten minutes each, on a build with address and undefined-behaviour sanitizers: the manifest and the binary index of LMDB,
tar and TFRecord with other contents and right checksums, pages of LMDB files, the journals that a resumed pack reads; a
fifth is damage anywhere. Everything that can be reached is read, decoded and verified. Only our errors may come, one
line each that names the file; what a checksum covers is right or an error; `verify` finds what reading found; a step
takes at most 20 seconds and, of Python and NumPy, 32 MiB, for files of 150 kB or less.

A run that was interrupted goes on where it was, on the same commit.
"""

from __future__ import annotations

from tools.torture.parsing import campaign


def run() -> list[str]:
    return campaign.run("manifest", "index", "pages", "journal")
