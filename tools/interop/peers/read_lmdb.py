"""py-lmdb, as anyone would read the file."""

import hashlib
import json
import sys

import lmdb

env = lmdb.open(f"{sys.argv[1]}/train.lmdb", subdir=False, readonly=True, lock=False)
with env.begin() as txn:
    for key, value in txn.cursor():
        if key.endswith(b".jpg"):
            label = int(txn.get(key[:-4] + b".cls"))
            print(json.dumps([key[:-4].decode(), hashlib.sha256(value).hexdigest(), label]))
