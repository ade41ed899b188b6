"""DALI's TFRecord reader on the CPU, with the tfrecord2idx files beside the shards."""

from __future__ import annotations

import glob
import hashlib
import json
import sys

import numpy as np
from nvidia.dali import fn, pipeline_def
from nvidia.dali import tfrecord as tfrec

shards = sorted(glob.glob(f"{sys.argv[1]}/train-*-of-*.tfrecord"))
indexes = [shard.removesuffix(".tfrecord") + ".idx" for shard in shards]
features = {
    "image/encoded": tfrec.FixedLenFeature((), tfrec.string, ""),
    "image/class/label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
}


@pipeline_def(batch_size=1, num_threads=1, device_id=None)
def pipeline():
    record = fn.readers.tfrecord(path=shards, index_path=indexes, features=features, name="reader")
    return record["image/encoded"], record["image/class/label"]


made = pipeline()
made.build()
for _ in range(made.epoch_size("reader")):
    jpg, label = (np.asarray(output.at(0)) for output in made.run())
    print(json.dumps([None, hashlib.sha256(jpg.tobytes()).hexdigest(), int(label.reshape(-1)[0])]))
