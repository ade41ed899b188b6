"""Nothing in a container of ours, or of its making, crashes the reader, hangs it, fills the memory or is read wrong.

Ten minutes each, on a build with address and undefined-behaviour sanitizers: the manifest and the binary index of LMDB,
tar and TFRecord with other contents and right checksums, pages of LMDB files; a
fifth is damage anywhere. What a checksum covers is right or an error. Other rules and limits as in `parsers_foreign`,
for files of 150 kB or less.
"""

from __future__ import annotations

from tools.torture.drivers import campaign


def run() -> list[str]:
    return campaign.run("manifest", "index", "pages")
