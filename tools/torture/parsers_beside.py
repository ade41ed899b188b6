"""Nothing that lies beside images crashes what reads it, hangs it or fills the memory; nor do arrays.

Ten minutes each, on a build with address and undefined-behaviour sanitizers: damaged indexes in the cache folder, which
are never used; annotations that follow their image, and EXIF blocks, in which kernel and Pillow must find the same
orientation; and images of many bits and channels (`.npy`, PNG, TIFF), read without loss. Rules and limits as in
`parsers_foreign`.
"""

from __future__ import annotations

from tools.torture.drivers import campaign


def run() -> list[str]:
    return campaign.run("cache", "annotations", "arrays")
