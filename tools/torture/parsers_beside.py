"""Nothing that lies beside images crashes what reads it, hangs it or fills the memory.

Ten minutes each, on a build with address and undefined-behaviour sanitizers: indexes in the cache folder with other
contents and right checksums, annotations that follow their image, and EXIF blocks, in which kernel and twin must find
the same orientation. Rules and limits as in `parsers_foreign`; a damaged index in the cache is never used.
"""

from __future__ import annotations

from tools.torture.drivers import campaign


def run() -> list[str]:
    return campaign.run("cache", "annotations")
