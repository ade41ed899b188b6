"""How long does `iofast --help` take beyond a bare Python, and does it load torch?

python -m benchmarks.bench_start [--rounds 21] [--output PAGE.md]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks import measure


def milliseconds(*arguments: str) -> Callable[[], float]:
    """Wall time of one Python process."""

    def run() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        return 1e3 * (time.perf_counter() - start)

    return run


def main() -> None:
    arguments = measure.arguments(__doc__, photos=False, rounds=21)
    contenders = {
        "python -c pass": milliseconds("-c", "pass"),
        "iofast --help": milliseconds("-m", "iofast", "--help"),
        "iofast pack --help": milliseconds("-m", "iofast", "pack", "--help"),
        "import iofast": milliseconds("-c", "import iofast"),
    }
    figures = measure.in_turn(contenders, arguments.rounds)
    bare = statistics.median(figures["python -c pass"])
    rows = [
        [name, measure.spread(values, 1), f"{statistics.median(values) - bare:.1f}"] for name, values in figures.items()
    ]
    text = f"""# Start-up of the command line

{measure.table(("", "ms: median (least – most)", "ms beyond bare Python"), rows)}
"""
    measure.publish("start", text, arguments.output, figures)


if __name__ == "__main__":
    main()
