"""`iofast run`: the images of a script that nobody edits, decoded by the kernel, equal to what Pillow gives.

imports.py    waits for the script's own imports, then calls patches.py; hook/ is the folder on PYTHONPATH
patches.py    what is replaced in Pillow, torchvision, timm and torch, and how it is put back
here.py       the same for notebooks and code: `import iofast.run.here`
plan.py       what has been asked of an image: a part, a size, a mirror
colours.py    Pillow's operations on colours, as steps of the kernel
source.py     the bytes of a file, and which of their pixels are decoded
opening.py    opens JPEGs as lazy images
images.py     lazy images: Pillow's own classes whose pixels are decoded at the first use
shadow.py     the self-check: the first images are made by Pillow as well
deferred.py   lazy tensors: an image that has become a tensor, or a batch of them
pointwise.py  arithmetic on lazy tensors, done on 256 levels instead of all pixels
shipping.py   lazy tensors on their way from a worker to the training process
decoding.py   rows to pixels, by threads where there are many
loaders.py    the training process decodes the batches of a DataLoader, and counts rates and waits
notes.py      what a process did; summary.py shows it at the end of a run
"""
