"""WebDataset's ShardWriter: shards, and what it wrote into them."""

import hashlib
import json
import pathlib
import sys

import webdataset

images = sorted(pathlib.Path(sys.argv[1]).glob("*.jpg"))
with webdataset.ShardWriter(f"{sys.argv[2]}/theirs-%06d.tar", maxcount=17, verbose=0) as writer:
    for number, path in enumerate(images):
        payload, key, label = path.read_bytes(), f"sample{number:05d}", number % 5
        writer.write({"__key__": key, "jpg": payload, "cls": label})
        print(json.dumps([key, hashlib.sha256(payload).hexdigest(), label]))
