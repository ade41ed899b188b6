"""datago: its client for local files, whose threads decode; crops are made by its user.

Used as its README says: a `DatagoClient` of the folder with `random_sampling`, a task per processor, its default. It
resizes to aspect buckets only, so OpenCV crops and resizes what it decoded, in the main thread. Its samples have paths,
from which labels come.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import datago
import torch
from decoding import augmented, collated, seen_by
from protocol import Options, main

from tools.pillow_folder import files_by_class


class Epochs:
    """A client that is started for each epoch."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.labels = {str(path): label for path, label in files_by_class(Path(options.data))}
        datago.initialize_logging(log_level="error")
        source = {"root_path": options.data, "random_sampling": True, "rank": 0, "world_size": 1}
        how = {"source_type": "file", "source_config": source, "limit": len(self.labels)}
        self.client = datago.DatagoClient(json.dumps(how | {"samples_buffer_size": options.batch}))

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self.client.start()
        samples: list[tuple[Any, int]] = []
        while (sample := self.client.get_sample()) is not None:
            image = sample.image.to_numpy_array()
            image = cv2.cvtColor(image, cv2.COLOR_GRAY2RGB) if image.ndim == 2 or image.shape[2] == 1 else image
            samples.append((augmented(image, self.options.size), self.labels[json.loads(sample.id)]))
            if len(samples) == self.options.batch:
                yield collated(samples)
                samples = []
        if samples:
            yield collated(samples)


def load(options: Options) -> tuple[Any, Any]:
    os.environ["DATAGO_MAX_TASKS"] = str(options.workers)
    return Epochs(options), seen_by(options)


if __name__ == "__main__":
    main(load)
