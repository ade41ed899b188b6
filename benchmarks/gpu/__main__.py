"""One part, in this process: `python -m benchmarks.gpu PART JOB`, with the job's fields as JSON (`Job.to_json`)."""

from __future__ import annotations

import importlib
import sys
import traceback

from benchmarks.gpu.job import Job, reason


def main(part: str, fields: str) -> int:
    job = Job.of_json(fields)
    try:
        importlib.import_module(f"benchmarks.gpu.{part}").run(job)
    except Exception as error:
        traceback.print_exc()
        job.lacks(f"{part}, from some point on", reason(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
