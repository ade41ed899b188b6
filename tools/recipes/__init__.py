"""How to pack the sets that people have: short programs on top of `iofast.pack` and `open_writer`, to be changed.

    python -m tools.recipes.imagenet ILSVRC imagenet.lmdb --resize 256
    python -m tools.recipes.cifar cifar-10-batches-bin cifar10.lmdb
    python -m tools.recipes.coco coco coco.tar
    python -m tools.recipes.ade20k ADEChallengeData2016 ade20k.lmdb
    python -m tools.recipes.captions folder captions.tar
    python -m tools.recipes.hf_imagefolder folder out.lmdb --resize 256

Those that take `--resize` go through `pack`: all cores, resume after a kill, a report of what failed. The others store
every byte as it is, through `open_writer`, because their masks or bytes are no files of images with a label.
"""
