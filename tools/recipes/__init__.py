"""How to pack well-known data sets: short programs on top of `iofast.pack` and `open_writer`, to be adapted.

They run from a checkout of the project, as modules with `--help`:

    python -m tools.recipes.imagenet ILSVRC imagenet.lmdb --resize 256
    python -m tools.recipes.cifar cifar-10-batches-bin cifar10.lmdb
    python -m tools.recipes.coco coco coco.tar --resize 640
    python -m tools.recipes.ade20k ADEChallengeData2016 ade20k.lmdb --resize 512
    python -m tools.recipes.captions folder captions.tar --resize 256
    python -m tools.recipes.hf_imagefolder folder out.lmdb --resize 256

They go through `pack`: all cores, resume after a kill, a report of failures; masks and boxes follow their images. CIFAR
and ImageNet's tars have no image files: they are stored as they are, through `open_writer`.
"""
