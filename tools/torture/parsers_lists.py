"""No list of images (CSV, TSV, JSON lines, Parquet) crashes what reads it, hangs it or fills the memory.

Ten minutes on the usual build: pyarrow throws C++ exceptions, which the sanitizers do not survive. Rules as in
`parsers_foreign`; a step takes at most 48 MiB.
"""

from __future__ import annotations

from tools.torture.drivers import campaign


def run() -> list[str]:
    return campaign.run("table", sanitized=False)
