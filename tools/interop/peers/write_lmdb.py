"""py-lmdb: a key and a JPEG each, and a text file of labels."""

import hashlib
import json
import pathlib
import sys

import lmdb

env = lmdb.open(f"{sys.argv[2]}/plain.lmdb", subdir=False, map_size=1 << 28)
lines = []
with env.begin(write=True) as txn:
    for number, path in enumerate(sorted(pathlib.Path(sys.argv[1]).glob("*.jpg"))):
        payload, key, label = path.read_bytes(), f"set/{number:05d}", number % 5
        txn.put(key.encode(), payload)
        lines.append(f"{key} {label}\n")
        print(json.dumps([key, hashlib.sha256(payload).hexdigest(), label]))
with open(f"{sys.argv[2]}/plain.lmdb.labels.txt", "w") as file:
    file.writelines(lines)
