"""DALI's webdataset reader on the CPU, with the wds2idx files beside the shards."""

from __future__ import annotations

import glob
import hashlib
import json
import sys

import numpy as np
from nvidia.dali import fn, pipeline_def

shards = sorted(glob.glob(f"{sys.argv[1]}/train-*.tar"))
indexes = [shard.removesuffix(".tar") + ".idx" for shard in shards]


@pipeline_def(batch_size=1, num_threads=1, device_id=None)
def pipeline():
    jpg, cls = fn.readers.webdataset(
        paths=shards, index_paths=indexes, ext=["jpg", "cls"], missing_component_behavior="error", name="reader"
    )
    return jpg, cls


made = pipeline()
made.build()
for _ in range(made.epoch_size("reader")):
    jpg, cls = (np.asarray(output.at(0)).tobytes() for output in made.run())
    print(json.dumps([None, hashlib.sha256(jpg).hexdigest(), int(cls)]))
