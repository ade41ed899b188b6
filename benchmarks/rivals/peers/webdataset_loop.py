"""WebDataset: tar shards, WebLoader with worker processes.

Used as its README and its FAQ on performance say: JPEG bytes in shards, several for each worker; shards are shuffled,
then samples in a buffer; batches are made in the workers (`batched`, `batch_size=None`), so that whole batches cross
to the main process. Images are decoded after `batched`, which saves a copy. Its own decoders "pil" and "torchrgb8" have
not been timed here. Each worker ends with a batch that may be smaller.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
import webdataset as wds
from decoding import batch_of, seen_by
from protocol import Options, main

from tools.pillow_folder import files_by_class

SHARDS = 16
BUFFER = 1000  # samples that are shuffled with each other


def load(options: Options) -> tuple[Any, Any]:
    shards = sorted(str(path) for path in Path(options.data).glob("*.tar"))
    shuffled = options.case != "centre"
    data = wds.WebDataset(shards, shardshuffle=len(shards) if shuffled else False, empty_check=False)
    data = data.shuffle(BUFFER) if shuffled else data
    data = data.to_tuple("jpg", "cls").batched(options.batch, collation_fn=list).map(partial(_decoded, options))
    loader = wds.WebLoader(data, batch_size=None, num_workers=options.workers, persistent_workers=True)
    return loader, seen_by(options)


def _decoded(options: Options, samples: list[tuple[bytes, bytes]]) -> tuple[torch.Tensor, torch.Tensor]:
    return batch_of([image for image, _ in samples], options), torch.tensor([int(label) for _, label in samples])


def pack(source: Path, target: Path, _options: Options) -> None:
    files = files_by_class(source)
    target.mkdir()
    with wds.ShardWriter(str(target / "%05d.tar"), maxcount=-(-len(files) // SHARDS), verbose=0) as writer:
        for number, (path, label) in enumerate(files):
            writer.write({"__key__": f"{number:08d}", "jpg": path.read_bytes(), "cls": label})


if __name__ == "__main__":
    main(load, pack)
