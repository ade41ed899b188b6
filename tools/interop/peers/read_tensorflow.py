"""tf.data and parse_single_example, with the ImageNet feature names."""

import glob
import hashlib
import json
import sys

import tensorflow as tf

features = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    "iofast/key": tf.io.FixedLenFeature([], tf.string),
}
files = sorted(glob.glob(f"{sys.argv[1]}/train-*-of-*.tfrecord"))
for record in tf.data.TFRecordDataset(files):
    parsed = tf.io.parse_single_example(record, features)
    payload, key = parsed["image/encoded"].numpy(), parsed["iofast/key"].numpy().decode()
    print(json.dumps([key, hashlib.sha256(payload).hexdigest(), int(parsed["image/class/label"])]))
