"""tf.data on TFRecord shards of the same JPEG bytes. Variants: antialias, plain.

As in TensorFlow's guide "Better performance with the tf.data API" and its ImageNet code: interleaved shards, shuffled
while encoded, `sample_distorted_bounding_box` with `decode_and_crop_jpeg`, which decodes the crop only, a parallel map,
and prefetching, with a thread pool of the workers, and no fixed order. Numbers of calls are given, since AUTOTUNE,
which the guide recommends, lets an iterator end only after its next look: 10 or 20 s late. plain is TensorFlow's usual
`tf.image.resize`, without antialiasing; antialias asks for it. By default TensorFlow decodes with the faster, less
exact inverse DCT. Pixels are normalised as rows of (width × 3) values, since a broadcast over three channels is slow.
The centre case decodes the middle only, since the files have a short side of 256 pixels already. tf.image has no
RandAugment.
"""

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from protocol import MEAN, STD, Options, main, pair

SHARDS, SHUFFLED = 8, 10_000  # files; records in the shuffle buffer
FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
WHOLE = [[[0.0, 0.0, 1.0, 1.0]]]  # the box that crops lie in


def load(options: Options) -> tuple[Any, Any]:
    tf.config.threading.set_intra_op_parallelism_threads(options.workers)
    tf.config.threading.set_inter_op_parallelism_threads(options.workers)
    shuffle = options.case != "centre"
    records = tf.data.Dataset.from_tensor_slices(sorted(str(path) for path in Path(options.data).iterdir()))
    records = records.interleave(tf.data.TFRecordDataset, num_parallel_calls=options.workers, deterministic=False)
    if shuffle:
        records = records.shuffle(SHUFFLED)
    samples = records.map(_sample(options), num_parallel_calls=options.workers)
    batches = samples.batch(options.batch).prefetch(2)
    how = tf.data.Options()
    how.deterministic = not shuffle
    how.autotune.enabled = False
    how.threading.private_threadpool_size = options.workers
    how.threading.max_intra_op_parallelism = 1
    return batches.with_options(how), pair


def _sample(options: Options) -> Any:
    size, antialias = (options.size, options.size), options.variant == "antialias"
    scale = tf.constant([1 / (255 * each) for each in STD] * options.size)
    shift = tf.constant([-mean / std for mean, std in zip(MEAN, STD, strict=True)] * options.size)

    def centre(encoded: Any) -> Any:
        height, width = tf.unstack(tf.io.extract_jpeg_shape(encoded)[:2])
        window = [(height - options.size) // 2, (width - options.size) // 2, *size]
        return tf.io.decode_and_crop_jpeg(encoded, window, channels=3)

    def crop(encoded: Any) -> Any:
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(encoded),
            WHOLE,
            min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            max_attempts=10,
        )
        window = tf.concat([begin[:2], extent[:2]], axis=0)
        images = tf.image.random_flip_left_right(tf.io.decode_and_crop_jpeg(encoded, window, channels=3))
        images = tf.image.resize(images, size, antialias=antialias)
        if not options.is_float:
            return tf.cast(images, tf.uint8)
        images = tf.reshape(tf.reshape(images, [options.size, -1]) * scale + shift, [*size, 3])
        return tf.cast(images, tf.bfloat16 if options.case == "bfloat16" else tf.float32)

    def sample(record: Any) -> tuple[Any, Any]:
        found = tf.io.parse_single_example(record, FEATURES)
        return (centre if options.case == "centre" else crop)(found["image"]), found["label"]

    return sample


def pack(source: Path, target: Path, _: Options) -> None:
    """Shards of examples that hold the bytes of the files."""
    labels = {folder: label for label, folder in enumerate(sorted(source.iterdir()))}
    target.mkdir()
    names = [str(target / f"{number:05d}-of-{SHARDS:05d}") for number in range(SHARDS)]
    writers = [tf.io.TFRecordWriter(name) for name in names]
    for number, path in enumerate(sorted(source.glob("*/*"))):
        image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[path.read_bytes()]))
        label = tf.train.Feature(int64_list=tf.train.Int64List(value=[labels[path.parent]]))
        example = tf.train.Example(features=tf.train.Features(feature={"image": image, "label": label}))
        writers[number % SHARDS].write(example.SerializeToString())
    for writer in writers:
        writer.close()


if __name__ == "__main__":
    main(load, pack)
