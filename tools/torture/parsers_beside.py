"""Nothing that lies beside images crashes what reads it, hangs it or fills the memory.

Ten minutes each, on a build with address and undefined-behaviour sanitizers: indexes in the cache folder with other
contents and right checksums, annotations that follow their image, and EXIF blocks, in which kernel and twin must find
the same orientation. Rules and limits as in `parsers_foreign`; an index in the cache that is damaged is never believed.

A run that was interrupted goes on where it was, on the same commit.
"""

from __future__ import annotations

from tools.torture.parsing import campaign


def run() -> list[str]:
    return campaign.run("cache", "annotations")
