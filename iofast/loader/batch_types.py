"""The types of batches, for type checkers: they follow from the dataset's `fields` and from the options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from iofast.loader.options import LoaderOptions
from iofast.transforms import Transform

if TYPE_CHECKING:

    class Fields(dict[str, Any]):
        """A batch of a dataset with `fields`, a plain dictionary at run time."""

        @overload
        def __getitem__(self, name: Literal["image", "label", "index", "valid", "size"], /) -> torch.Tensor: ...
        @overload
        def __getitem__(self, name: Literal["key"], /) -> list[str]: ...
        @overload
        def __getitem__(self, name: str, /) -> Any: ...
        def __getitem__(self, name: str, /) -> Any: ...
else:
    Fields = dict


@dataclass(frozen=True)
class UsualOptions(LoaderOptions):
    """The options with which batches consist of tensors. The types of other batches are not known: `Any`."""

    _: KW_ONLY
    transform: Sequence[Transform] | None = None
    output: Literal["torch"] = "torch"
    ragged: Literal["raise", "pad"] = "raise"
    collate: None = None
    map_sample: None = None
    map_batch: None = None
