"""One part, in this process: python -m benchmarks.gpu PART --data FOLDER --log FILE."""

import argparse
import importlib
import sys
import traceback
from pathlib import Path

import torch

from benchmarks.gpu.job import Job, reason


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part")
    parser.add_argument("--data", type=Path, required=True, help="folder of what the parts work on")
    parser.add_argument("--log", type=Path, required=True, help="file that figures are added to")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--seconds", type=float, default=60.0, help="what it may take")
    parser.add_argument("--photos", type=Path, help="photographs, for the part `data`")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    job = Job(asked.data, asked.log, asked.device, asked.seconds, asked.quick)
    module = importlib.import_module(f"benchmarks.gpu.{asked.part}")
    try:
        if asked.part == "data":
            module.run(job, asked.photos)
        else:
            module.run(job)
    except Exception as error:
        traceback.print_exc()
        job.lacks(f"{asked.part}, from some point on", reason(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
