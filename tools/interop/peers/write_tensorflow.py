"""TFRecordWriter and tf.train.Example, as the ImageNet converters write."""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys

import tensorflow as tf


def feature(value):
    if isinstance(value, int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


images = sorted(pathlib.Path(sys.argv[1]).glob("*.jpg"))
for part in range(2):
    with tf.io.TFRecordWriter(f"{sys.argv[2]}/train-{part:05d}-of-00002") as writer:
        for number in range(part * len(images) // 2, (part + 1) * len(images) // 2):
            payload, label = images[number].read_bytes(), number % 5
            values = {
                "image/encoded": payload,
                "image/class/label": label,
                "image/filename": images[number].name.encode(),
            }
            features = tf.train.Features(feature={name: feature(value) for name, value in values.items()})
            writer.write(tf.train.Example(features=features).SerializeToString())
            print(json.dumps([None, hashlib.sha256(payload).hexdigest(), label]))
