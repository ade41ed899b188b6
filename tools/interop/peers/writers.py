"""Programs that write what iofast reads, as their users write them: `writers.py NAME IMAGES TARGET`.

Each is a function that writes the JPEGs of a folder and yields (key or None, payload, label, other fields) of every
record. It knows nothing of iofast, and runs in the environment of its own packages.
"""

import hashlib
import json
import pathlib
import sys


def images() -> list[pathlib.Path]:
    """The JPEGs, sorted."""
    return sorted(pathlib.Path(sys.argv[2]).glob("*.jpg"))


def webdataset(target: str):
    """WebDataset's ShardWriter."""
    import webdataset

    with webdataset.ShardWriter(f"{target}/theirs-%06d.tar", maxcount=17, verbose=0) as writer:
        for number, path in enumerate(images()):
            payload, key, label = path.read_bytes(), f"sample{number:05d}", number % 5
            writer.write({"__key__": key, "jpg": payload, "cls": label})
            yield key, payload, label, None


def tensorflow(target: str):
    """TFRecordWriter and tf.train.Example, as the ImageNet converters write."""
    import tensorflow as tf

    def feature(value):
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    paths = images()
    for part in range(2):
        with tf.io.TFRecordWriter(f"{target}/train-{part:05d}-of-00002") as writer:
            for number in range(part * len(paths) // 2, (part + 1) * len(paths) // 2):
                payload, label, name = paths[number].read_bytes(), number % 5, paths[number].name.encode()
                values = {"image/encoded": payload, "image/class/label": label, "image/filename": name}
                features = tf.train.Features(feature={name: feature(value) for name, value in values.items()})
                writer.write(tf.train.Example(features=features).SerializeToString())
                yield None, payload, label, None


def lmdb(target: str):
    """py-lmdb: a key and a JPEG each."""
    import lmdb

    env = lmdb.open(f"{target}/plain.lmdb", subdir=False, map_size=1 << 28)
    with env.begin(write=True) as txn:
        for number, path in enumerate(images()):
            payload, key = path.read_bytes(), f"set/{number:05d}"
            txn.put(key.encode(), payload)
            yield key, payload, -1, None


def _table(first: int, last: int):
    """A table of `datasets` with the images of a range, and its records."""
    import datasets

    paths, numbers = images(), range(first, last)
    number, text = datasets.Value("int64"), datasets.Value("string")
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list("abcde")), "caption": text}
    kinds |= {"score": datasets.Value("float32"), "good": datasets.Value("bool"), "ids": datasets.List(number)}
    rows = {
        "image": [{"bytes": paths[each].read_bytes(), "path": paths[each].name} for each in numbers],
        "label": [each % 5 for each in numbers],
        "caption": [f"größe {each}" for each in numbers],
        "score": [each / 4 for each in numbers],
        "good": [each % 2 == 0 for each in numbers],
        "ids": [[each] * (each % 3) for each in numbers],
    }
    records = []
    for each in numbers:
        others = {"caption.txt": f"größe {each}".encode(), "image_path.txt": paths[each].name.encode()}
        rest = {"score": each / 4, "good": each % 2 == 0, "ids": [each] * (each % 3)}
        others |= {"json": json.dumps(rest, separators=(",", ":")).encode()}
        records.append((None, paths[each].read_bytes(), each % 5, others))
    return datasets.Dataset.from_dict(rows, datasets.Features(kinds)), records


def hub(target: str):
    """Parquet of `datasets`, in the Hub's folders: two splits, the first in two files."""
    pathlib.Path(target, "hub", "data").mkdir(parents=True)
    third = len(images()) // 3
    for number, name in enumerate(("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001")):
        end = (number + 1) * third if number < 2 else len(images())
        table, records = _table(number * third, end)
        table.to_parquet(f"{target}/hub/data/{name}.parquet", batch_size=7)
        yield from records


def saved(target: str):
    """`DatasetDict.save_to_disk` of `datasets`: two splits, in files of few rows."""
    import datasets

    half = len(images()) // 2
    train, records = _table(0, half)
    test, others = _table(half, len(images()))
    datasets.DatasetDict(train=train, test=test).save_to_disk(f"{target}/saved", num_shards={"train": 3, "test": 1})
    yield from records + others


PROGRAMS = (webdataset, tensorflow, lmdb, hub, saved)

if __name__ == "__main__":
    (write,) = (program for program in PROGRAMS if program.__name__ == sys.argv[1])
    for key, payload, label, others in write(sys.argv[3]):
        hashes = others and {name: hashlib.sha256(value).hexdigest() for name, value in others.items()}
        print(json.dumps([key, hashlib.sha256(payload).hexdigest(), label, hashes]))
