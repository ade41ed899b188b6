"""Programs that read what iofast wrote, as their users write them: `readers.py NAME FOLDER SCRATCH`.

Each is a function that yields (key or None, payload, label) of every record. It knows nothing of iofast, and runs in
the environment of its own packages.
"""

import glob
import hashlib
import json
import pathlib
import shutil
import sqlite3
import subprocess
import sys


def files(pattern: str) -> list[str]:
    """The files of a pattern in FOLDER, sorted."""
    return sorted(glob.glob(f"{sys.argv[2]}/{pattern}"))


def lmdb(folder: str, _scratch: str):
    """py-lmdb, as anyone would read the file."""
    import lmdb

    env = lmdb.open(f"{folder}/train.lmdb", subdir=False, readonly=True, lock=False)
    with env.begin() as txn:
        for key, value in txn.cursor():
            if key.endswith(b".jpg"):
                yield key[:-4].decode(), value, txn.get(key[:-4] + b".cls")


def webdataset(_folder: str, _scratch: str):
    """WebDataset over all shards."""
    import webdataset

    for sample in webdataset.WebDataset(files("train-*.tar"), shardshuffle=False, empty_check=False):
        yield sample["__key__"], sample["jpg"], sample["cls"]


def wids(_folder: str, scratch: str):
    """wids: random access to tar shards by the index that its `widsindex` writes."""
    import wids

    index = pathlib.Path(scratch, "train.shardindex.json")
    program = pathlib.Path(sys.executable).with_name("widsindex")
    subprocess.run([program, "create", "-o", index, *files("train-*.tar")], stdout=sys.stderr, timeout=300, check=True)
    dataset = wids.ShardListDataset(str(index), transformations=[], cache_dir=scratch)
    for index in range(len(dataset)):
        sample = dataset[index]
        jpg, cls = (sample[name].read() if hasattr(sample[name], "read") else sample[name] for name in (".jpg", ".cls"))
        yield sample["__key__"], jpg, cls


def datasets(_folder: str, scratch: str):
    """Hugging Face datasets: its webdataset loader, images left encoded."""
    import datasets

    shards = {"train": files("train-*.tar")}
    dataset = datasets.load_dataset("webdataset", data_files=shards, split="train", cache_dir=scratch)
    for sample in dataset.cast_column("jpg", datasets.Image(decode=False)):
        yield sample["__key__"], sample["jpg"]["bytes"], sample["cls"]


def timm(folder: str, _scratch: str):
    """timm's reader of tar shards. It gives pixels, so the images are PNG."""
    import torch

    # The index's torchvision is built for torch with CUDA. Beside a torch without it torchvision's operators are
    # missing, and its import fails unless those exist that it refers to. timm's reader needs none of them.
    operators = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from timm.data.readers.reader_wds import ReaderWds

    last = len(files("png/train-*.tar")) - 1
    reader = ReaderWds(f"{folder}/png", split=f"train-{{000000..{last:06d}}}.tar|60", is_training=False)
    assert len(reader) == 60, len(reader)
    for image, target in reader:
        yield None, image.tobytes(), target


def energon(_folder: str, scratch: str):
    """Megatron-Energon: `energon prepare`, then every payload at the place that its index has."""
    copies = pathlib.Path(scratch, "energon")
    shutil.rmtree(copies, ignore_errors=True)
    copies.mkdir(parents=True)
    for shard in files("train-*.tar"):
        shutil.copy(shard, copies)
    program = pathlib.Path(sys.executable).with_name("energon")
    command = [program, "prepare", copies, "--split-parts", "train:.*", "--num-workers", "1", "--no-progress"]
    answers = "n\n"  # no dataset.yaml, which describes what the fields mean to a model
    subprocess.run(command, input=answers, text=True, stdout=sys.stderr, timeout=300, check=True)
    tars, index = sorted(copies.glob("*.tar")), sqlite3.connect(copies / ".nv-meta" / "index.sqlite")
    query = """select s.tar_file_id, s.sample_key, p.part_name, p.content_byte_offset, p.content_byte_size
        from samples s join sample_parts p on p.tar_file_id = s.tar_file_id and p.sample_index = s.sample_index
        order by s.tar_file_id, s.sample_index"""
    records = {}
    for number, key, part, offset, size in index.execute(query):
        with tars[number].open("rb") as file:
            file.seek(offset)
            records.setdefault(key, {})[part] = file.read(size)
    for key, parts in records.items():
        yield key, parts["jpg"], parts["cls"]


def tensorflow(_folder: str, _scratch: str):
    """tf.data and parse_single_example, with the ImageNet feature names."""
    import tensorflow as tf

    kinds = {"image/encoded": tf.string, "image/class/label": tf.int64, "iofast/key": tf.string}
    features = {name: tf.io.FixedLenFeature([], kind) for name, kind in kinds.items()}
    for record in tf.data.TFRecordDataset(files("train-*-of-*.tfrecord")):
        parsed = tf.io.parse_single_example(record, features)
        yield parsed["iofast/key"].numpy().decode(), parsed["image/encoded"].numpy(), parsed["image/class/label"]


def tfrecord(_folder: str, scratch: str):
    """The `tfrecord` package, shard by shard, by the index files of its tfrecord2idx."""
    from tfrecord.reader import tfrecord_loader
    from tfrecord.tools.tfrecord2idx import create_index

    description = {"image/encoded": "byte", "image/class/label": "int", "iofast/key": "byte"}
    for file in files("train-*-of-*.tfrecord"):
        index = f"{scratch}/{pathlib.Path(file).stem}.idx"
        create_index(file, index)
        for part in range(2):  # by parts, so that the index is used
            for record in tfrecord_loader(file, index, description, shard=(part, 2)):
                key, label = bytes(record["iofast/key"]).decode(), record["image/class/label"][0]
                yield key, bytes(record["image/encoded"]), label


def dali_tar(_folder: str, _scratch: str):
    """DALI's webdataset reader on the CPU, which makes its own index."""
    from nvidia.dali import fn

    shards = files("train-*.tar")
    options = {"ext": ["jpg", "cls"], "missing_component_behavior": "error"}
    yield from _dali(lambda: tuple(fn.readers.webdataset(paths=shards, name="reader", **options)))


def dali_tfrecord(_folder: str, scratch: str):
    """DALI's TFRecord reader on the CPU, with the index files of its tfrecord2idx."""
    from nvidia.dali import fn
    from nvidia.dali import tfrecord as tfrec

    shards = files("train-*-of-*.tfrecord")
    indexes = [f"{scratch}/{pathlib.Path(shard).stem}.dali" for shard in shards]
    for shard, index in zip(shards, indexes, strict=True):
        program = pathlib.Path(sys.executable).with_name("tfrecord2idx")
        subprocess.run([program, shard, index], stdout=sys.stderr, timeout=300, check=True)
    features = {
        "image/encoded": tfrec.FixedLenFeature((), tfrec.string, ""),
        "image/class/label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
    }

    def read():
        record = fn.readers.tfrecord(path=shards, index_path=indexes, features=features, name="reader")
        return tuple(record[name] for name in features)

    yield from _dali(read)


def _dali(read):
    """The records of a pipeline whose outputs are image and label."""
    import numpy as np
    from nvidia.dali import pipeline_def

    pipeline = pipeline_def(batch_size=1, num_threads=1, device_id=None)(read)()
    pipeline.build()
    for _ in range(pipeline.epoch_size("reader")):
        jpg, label = (np.asarray(output.at(0)) for output in pipeline.run())
        yield None, jpg.tobytes(), int(label.tobytes()) if label.dtype == np.uint8 else label.reshape(-1)[0]


PROGRAMS = (lmdb, webdataset, wids, datasets, timm, energon, tensorflow, tfrecord, dali_tar, dali_tfrecord)

if __name__ == "__main__":
    (read,) = (program for program in PROGRAMS if program.__name__ == sys.argv[1])
    for key, payload, label in read(*sys.argv[2:]):
        print(json.dumps([key, hashlib.sha256(payload).hexdigest(), int(label)]))
