"""wids: random access to tar shards by the index beside them."""

import hashlib
import json
import sys

import wids

dataset = wids.ShardListDataset(f"{sys.argv[1]}/train.shardindex.json", transformations=[], cache_dir=sys.argv[2])
for index in range(len(dataset)):
    sample = dataset[index]
    jpg, cls = (sample[name].read() if hasattr(sample[name], "read") else sample[name] for name in (".jpg", ".cls"))
    print(json.dumps([sample["__key__"], hashlib.sha256(jpg).hexdigest(), int(cls)]))
