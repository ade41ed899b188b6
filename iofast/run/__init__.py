"""`iofast run`: the images of a script that nobody edits, decoded by the kernel, equal to what Pillow gives.

patches.py    what is replaced in Pillow, torchvision, timm and torch after their imports; hook/: a folder on PYTHONPATH
here.py       the same for notebooks and code: `import iofast.run.here`
noting.py     what a lazy image notes instead of doing it
images.py     lazy images, opened from JPEGs: Pillow's own as soon as their pixels are used
parts.py      the bytes of a file, what has been asked of it: a part, a size, a mirror, and how that is decoded
colours.py    colours, as steps of the kernel
shadow.py     the self-check: the first images are made by Pillow as well
deferred.py   lazy tensors: an image that has become a tensor, or a batch of them, also on their way from a worker
contents.py   what they hold, and how it becomes ordinary tensors, by threads where there are many
loaders.py    the training process decodes the batches of a DataLoader, and counts rates and waits
notes.py      what a process did; summary.py shows it at the end of a run
"""
