"""NVIDIA DALI without a GPU, as in its ResNet50 example with `--dali_cpu`.

`readers.file` on the plain files, `decoders.image_random_crop`, which decodes the crop only, `resize` with linear
interpolation, which antialiases, and `flip` or, for float32, the fused `crop_mirror_normalize`. The centre case decodes
with `image_crop`, since the files have a short side of 256 pixels already. The recipe: `color_twist` and
`auto_aug.rand_augment`. Slower were `decoders.image` with `random_resized_crop`, planes instead of the channels-last
layout, and `crop_mirror_normalize` for uint8. `use_fast_idct` is the faster, less exact inverse DCT. Dynamic execution,
affinity and the queue's depth made no difference.
"""

from collections.abc import Iterator
from typing import Any

from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.auto_aug import rand_augment
from protocol import MEAN, STD, Options, main


class Epochs:
    """Iterates over epochs; the last batch is filled from the next epoch, and all of its images count."""

    def __init__(self, pipeline: Any, batch: int) -> None:
        self.pipeline, self.batch = pipeline, batch
        self.images = pipeline.reader_meta("Reader")["epoch_size"]

    def __iter__(self) -> Iterator[Any]:
        for _ in range(-(-self.images // self.batch)):
            yield self.pipeline.run()


def load(options: Options) -> tuple[Any, Any]:
    pipeline = _pipeline(options, batch_size=options.batch, num_threads=options.workers, device_id=None)
    pipeline.build()
    return Epochs(pipeline, options.batch), lambda batch: (len(batch[1]), batch[0].as_tensor())


@pipeline_def(enable_conditionals=True)
def _pipeline(options: Options) -> tuple[Any, Any]:
    shuffle = options.case != "centre"
    how: dict[str, Any] = {"random_shuffle": shuffle, "dont_use_mmap": options.is_cold, "name": "Reader"}
    encoded, labels = fn.readers.file(file_root=options.data, **how)
    if options.case == "centre":
        return fn.decoders.image_crop(encoded, crop=(options.size, options.size), use_fast_idct=True), labels
    how: dict[str, Any] = {"random_aspect_ratio": [3 / 4, 4 / 3], "random_area": [0.08, 1.0], "use_fast_idct": True}
    images = fn.decoders.image_random_crop(encoded, **how)
    images = fn.resize(images, size=(options.size, options.size), interp_type=types.INTERP_LINEAR)
    mirror = fn.random.coin_flip()
    if options.case == "crop":
        return fn.flip(images, horizontal=mirror), labels
    if options.case == "recipe":
        images = _augmented(fn.flip(images, horizontal=mirror), options)
        mirror = 0
    mean, std = ([255 * each for each in values] for values in (MEAN, STD))
    how = {"mean": mean, "std": std, "dtype": types.FLOAT, "output_layout": "HWC"}
    return fn.crop_mirror_normalize(images, mirror=mirror, **how), labels


def _augmented(images: Any, options: Options) -> Any:
    brightness, contrast, saturation = (fn.random.uniform(range=[0.6, 1.4]) for _ in range(3))
    hue = fn.random.uniform(range=[-36.0, 36.0])
    images = fn.color_twist(images, brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)
    return rand_augment.rand_augment(images, n=2, m=9, shape=(options.size, options.size))


if __name__ == "__main__":
    main(load)
