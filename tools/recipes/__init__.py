"""How to pack the sets that people have: short programs on top of `iofast.pack` and `open_writer`, to be changed.

They run from a checkout of the project, as modules; each has a `--help`:

    python -m tools.recipes.imagenet ILSVRC imagenet.lmdb --resize 256
    python -m tools.recipes.cifar cifar-10-batches-bin cifar10.lmdb
    python -m tools.recipes.coco coco coco.tar --resize 640
    python -m tools.recipes.ade20k ADEChallengeData2016 ade20k.lmdb --resize 512
    python -m tools.recipes.captions folder captions.tar --resize 256
    python -m tools.recipes.hf_imagefolder folder out.lmdb --resize 256

They go through `pack`: all cores, resume after a kill, a report of what failed; masks and boxes follow their images.
But CIFAR, and ImageNet's tars, are no files of images: these are stored as they are, through `open_writer`.
"""
