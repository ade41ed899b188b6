"""`make torture [PART=name]`: run the parts and write benchmarks/results/torture-<name>.md."""

import sys
import time
from importlib import import_module
from pathlib import Path
from subprocess import CalledProcessError

from tools import machine
from tools.torture import ROOT, Failed, NotTried

RESULTS = ROOT / "benchmarks" / "results"
PARTS = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem[0] != "_")


def main(names: list[str]) -> int:
    if unknown := sorted(set(names) - set(PARTS)):
        print(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    return max([torture(name) for name in names or PARTS], default=0)


def torture(name: str) -> int:
    """Run one part and write its result. Return 0 if it held, or cannot run on this machine."""
    part = import_module(f"tools.torture.{name}")
    question = " ".join((part.__doc__ or "").split("\n\n")[0].split())
    print(f"\n{name}: {question}", flush=True)
    start = time.monotonic()
    try:
        findings, verdict = "\n".join(part.run()), "held"
    except NotTried as missing:
        print(f"{name}: NOT TRIED: {missing}", flush=True)  # an earlier result is kept
        return 0
    except (Failed, CalledProcessError) as failure:
        findings, verdict = f"- {failure}", "FAILED"
    page = f"""# Torture: {name}

{question}

**{verdict}** after {time.monotonic() - start:.0f} s, `make torture PART={name}`

{findings}

{machine.describe()}
"""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"torture-{name}.md").write_text(page)
    print(page, flush=True)
    return int(verdict != "held")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
