"""timm's reader of tar shards, by the `_info.json` beside them. It gives pixels, so the images are PNG."""

import hashlib
import json
import sys

import torch

# The torchvision of the package index is built for torch with CUDA. Beside a torch without it, its operators are
# missing, and it cannot even be imported unless those exist that it speaks of. timm's reader needs none.
operators = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from timm.data.readers.reader_wds import ReaderWds  # noqa: E402  (after that)

reader = ReaderWds(f"{sys.argv[1]}/png", split="train", is_training=False)
assert len(reader) == 60, len(reader)
for image, target in reader:
    print(json.dumps([None, hashlib.sha256(image.tobytes()).hexdigest(), int(target)]))
