"""The `tfrecord` package, shard by shard, by the index files beside them (which are those of its own tfrecord2idx)."""

import glob
import hashlib
import json
import sys

from tfrecord.reader import tfrecord_loader

description = {"image/encoded": "byte", "image/class/label": "int", "iofast/key": "byte"}
for file in sorted(glob.glob(f"{sys.argv[1]}/train-*-of-*.tfrecord")):
    index = file.removesuffix(".tfrecord") + ".idx"
    for part in range(2):  # by parts, so that the index is used
        for record in tfrecord_loader(file, index, description, shard=(part, 2)):
            payload, key = bytes(record["image/encoded"]), bytes(record["iofast/key"]).decode()
            print(json.dumps([key, hashlib.sha256(payload).hexdigest(), int(record["image/class/label"][0])]))
