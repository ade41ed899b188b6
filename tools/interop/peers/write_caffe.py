"""Caffe-style: encoded Datums by protobuf, in an LMDB folder, as convert_imageset --encoded writes them."""

import hashlib
import json
import pathlib
import sys

import lmdb
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

file = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe", syntax="proto2")
message = file.message_type.add(name="Datum")
for number, name, kind in (
    (1, "channels", 5),
    (2, "height", 5),
    (3, "width", 5),
    (4, "data", 12),
    (5, "label", 5),
    (7, "encoded", 8),
):
    message.field.add(name=name, number=number, type=kind, label=1)
pool = descriptor_pool.DescriptorPool()
pool.Add(file)
Datum = message_factory.GetMessageClass(pool.FindMessageTypeByName("caffe.Datum"))

env = lmdb.open(f"{sys.argv[2]}/caffe_lmdb", map_size=1 << 28)
with env.begin(write=True) as txn:
    for number, path in enumerate(sorted(pathlib.Path(sys.argv[1]).glob("*.jpg"))):
        payload, key, label = path.read_bytes(), f"{number:08d}_{path.name}", number % 5
        txn.put(key.encode(), Datum(data=payload, label=label, encoded=True).SerializeToString())
        print(json.dumps([key, hashlib.sha256(payload).hexdigest(), label]))
