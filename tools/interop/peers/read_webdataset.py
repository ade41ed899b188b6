"""WebDataset over all shards."""

import glob
import hashlib
import json
import sys

import webdataset

shards = sorted(glob.glob(f"{sys.argv[1]}/train-*.tar"))
for sample in webdataset.WebDataset(shards, shardshuffle=False, empty_check=False):
    print(json.dumps([sample["__key__"], hashlib.sha256(sample["jpg"]).hexdigest(), int(sample["cls"])]))
