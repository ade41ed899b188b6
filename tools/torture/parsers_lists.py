"""No list of images (CSV, TSV, JSON lines, Parquet) and no table with images (Arrow, Parquet) crashes what reads it.

Nor does it hang it or fill the memory. Ten minutes each on the usual build: pyarrow throws C++ exceptions, which the
sanitizers do not survive. Rules as in `parsers_foreign`; a step takes at most 48 MiB.
"""

from __future__ import annotations

from tools.torture.drivers import campaign


def run() -> list[str]:
    return campaign.run("table", "arrow", sanitized=False)
