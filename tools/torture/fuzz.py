"""No damaged image crashes the kernel, makes it read or write where it should not, or has ways of decoding disagree.

Thirty minutes each, on a build with address and undefined-behaviour sanitizers. `images`: JPEGs changed anywhere go
through read_header, decode, decode_batch, transcode and rewrite. `regions`: small JPEGs, most with restart
markers, damaged in headers, markers, tables and entropy-coded data, go through our region decoder, the splice and
libjpeg, strict and not, at full and reduced size. Damage may raise `DecodeError` or set a status, and nothing else. All
ways give the same status and pixels of a whole image, and a region is a part of it. `device`: JPEGs with restart
markers, damaged likewise, go through the device's code, built for the host, with any work: what it passes has the
kernel's bits.
"""

from tools.torture.drivers.run import campaign

SECONDS = 1800


def run() -> list[str]:
    return campaign("images", "regions", "device", seconds=SECONDS)
