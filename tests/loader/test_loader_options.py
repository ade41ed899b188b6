"""The interface of a loader: options that are refused, attributes, a sampler, a repr; and errors for images."""

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_images import jpeg, photo
from loader_sets import all_labels, digest, photographs, upright, write_folder
from loader_sets import labels_of as taken
from torch.utils.data import ConcatDataset, RandomSampler, SequentialSampler, Subset

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.errors import DecodeError, OptionError, StateError
from iofast.loader import LoaderOptions

IMAGES = photographs(40)
AUGMENT = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
CROP: list[Any] = [T.RandomResizedCrop(24)]
VIEWS = T.Views(first=[T.CenterCrop(8)])
MIXED: dict[str, Any] = {"batch_size": 8, "transform": [*CROP, T.MixUp(num_classes=40)]}
CACHED: dict[str, Any] = {"cache": "device"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size .* found 0"),
    ({"batch_size": True}, "batch_size must be a whole number from 1 .* found True"),
    ({"batch_size": np.array([1, 2])}, r"batch_size must be a whole number .* found array\(\[1, 2\]\)"),
    ({"readahead": 1}, "readahead must be True, False or 'auto', found 1"),
    ({"collate": {1: print}}, "collate must map field names to functions, found {1: <built-in"),
    ({"collate": {"image": 3}}, r"collate\['image'\] must be callable, found 3"),
    ({"on_error": np.array(["raise"])}, r"on_error must be 'raise', 'replace' or 'drop', found array\(\['raise'\]"),
    ({"on_error": "drop", "max_errors": -1}, "max_errors must be a whole number .* found -1"),
    ({"max_errors": 3}, "max_errors goes with on_error='replace' or 'drop'"),
    ({"seed": -1}, "seed .* found -1"),
    ({"seed": 1 << 64}, "seed .* 18446744073709551615"),
    ({"seed": None}, "seed .* found None"),
    ({"num_workers": 0, "prefetch": 3}, "prefetch=3 needs threads that work ahead: leave it out with num_workers=0"),
    ({"num_workers": -1}, "num_workers .* found -1"),
    ({"num_workers": 257}, "num_workers .* 256, found 257"),
    ({"prefetch": 0}, "prefetch .* found 0"),
    ({"prefetch": 65}, "prefetch .* 64, found 65"),
    ({"check": True}, "check must be"),
    ({"dtype": torch.int64}, "dtype must be .* found torch.int64"),
    ({"dtype": "zeros"}, "dtype must be .*, found 'zeros'"),
    ({"transform": T.train(8), "dtype": "uint8"}, "Normalize.* needs a float dtype"),
    ({"memory_format": torch.preserve_format}, "memory_format must be"),
    ({"device": "cuda:99"}, "device cuda:99 not found"),
    ({"device": "xpu"}, "device xpu not found: "),
    ({"rank": 0}, "rank and world_size go together"),
    ({"rank": -1, "world_size": 2}, "rank .* found -1"),
    ({"rank": 0, "world_size": 0}, "world_size .* found 0"),
    ({"batch_size": 41, "drop_last": True}, "drop_last=True leaves no batch: 40 samples"),
    ({"batch_size": 14, "drop_last": True, "rank": 0, "world_size": 3}, "drop_last=True leaves no batch: 40 samples"),
    ({"transform": [T.RandomHorizontalFlip(), T.RandomResizedCrop(8)]}, "^RandomResizedCrop.* cannot follow"),
    ({"transform": T.RandomResizedCrop(8)}, r"transform must be a list .*; write \[RandomResizedCrop\(…\)\]$"),
    ({"transform": "train"}, "transform must be a list .* found 'train'$"),
    ({"transform": [torch.nn.Identity()]}, "^torch.nn.modules.linear.Identity is no transform of iofast"),
    # options that do not go together
    ({"output": "numpy", "dtype": torch.bfloat16, "transform": CROP}, "found dtype=torch.bfloat16"),
    ({"output": "numpy", "device": "meta", "transform": CROP}, "found device='meta'"),
    ({"group": "dp"}, "group must be a process group or a device mesh of torch with this process, found 'dp'"),
    ({"group": "dp", "rank": 0, "world_size": 2}, "group has a rank and a world_size of its own"),
    *(
        ({"transform": VIEWS} | more, f"Views do not go with .*{name}")
        for name, more in (
            ("map_sample", {"map_sample": lambda sample, rng: sample}),
            ("ragged", {"ragged": "list"}),
            ("cache", CACHED),
            ("collate", {"collate": {"image": list}, "dtype": torch.uint8}),
        )
    ),
    (CACHED | {"map_sample": lambda sample, rng: sample}, "does not go with map_sample: .* use map_batch"),
    (CACHED | {"readahead": True}, "does not go with readahead=True"),
    (CACHED | {"pixels": "fast"}, "does not go with pixels='fast'"),
    (CACHED | {"device": "meta"}, "does not go with device='meta'"),
    (CACHED | {"collate": {"image": torch.stack}}, "does not go with collate\\['image'\\]"),
    ({"collate": {"labels": list}}, "collate must name fields of the dataset, image, label, found 'labels'"),
    ({"collate": {"image": len}, "dtype": torch.float32}, r"collate\['image'\] gets uint8 images"),
    (CACHED | {"ragged": "pad"}, "does not go with ragged='pad'"),
    (CACHED | {"transform": [T.Resize(24, interpolation="bicubic")]}, "bilinearly, found interpolation='bicubic'"),
    (CACHED | {"fields": ["label"]}, "must have 'image'"),
    (CACHED | {"fields": ["image", "label", "jpg"]}, "none that is read from records, found image, label, jpg"),
    (MIXED | {"batch_size": 3}, "batch_size must be even, found 3"),
    (MIXED | {"ragged": "list"}, "MixUp does not go with ragged='list'"),
    (MIXED | {"collate": {"label": list}}, r"MixUp does not go with collate\['label'\]"),
    (MIXED | {"transform": [*CROP, T.MixUp(num_classes=5)]}, "labels must be below num_classes=5, found"),
    *(
        ({"image_mode": "L", "dtype": torch.float32, "transform": [*CROP, op]}, "has one channel: give one number")
        for op in (T.Normalize.imagenet(), T.RandomErasing(value=(0.1, 0.2, 0.3)))
    ),
]


class TestOptions:
    @pytest.mark.parametrize(("options", "message"), REFUSED)  # an id would have the address of a function
    def test_refused(self, numbered: FastDataset, options: dict[str, Any], message: str) -> None:
        given = dict(options)
        dataset = FastDataset(numbered.path, fields=given.pop("fields", None))
        with pytest.raises(OptionError, match=message) as caught:
            list(FastLoader(dataset, **given))
        assert "\n" not in str(caught.value)

    def test_what_it_cannot_load(self, numbered: FastDataset) -> None:
        path: Any = numbered.path
        refused: list[tuple[Any, str]] = [
            (path, "^dataset must be a FastDataset, found str$"),
            (Subset(numbered, [1]), r"found Subset: give FastDataset\(…, indices=subset.indices\)"),
            (ConcatDataset([numbered]), r"found ConcatDataset: give FastDataset\(\["),
            (FastDataset(path, indices=[]), r"nothing to load.*numbered\.lmdb.*0 samples"),
            *((FastDataset(path, **{f"{name}transform": str}), "a transform of its own") for name in ("", "target_")),
        ]
        for dataset, message in refused:
            with pytest.raises(OptionError, match=message):
                FastLoader(dataset)

    @pytest.mark.parametrize(
        ("name", "advice"),
        [
            ("sampler", "give it as order="),
            ("batch_sampler", "give its sampler as order="),
            ("pin_memory", "leave it out, because with device='cuda'"),
            ("collate_fn", r"give collate=\{field: function\} .*, or map_batch="),
            ("persistent_workers", "leave it out, because workers are threads"),
            ("prefetch_factor", "give prefetch="),
            ("generator", "give seed="),
            ("mesh", "give it as group="),
            ("batchsize", r"did you mean batch_size\?"),
            ("xyz", "see LoaderOptions"),
        ],
    )
    def test_options_of_others(self, twenty: FastDataset, name: str, advice: str) -> None:
        with pytest.raises(OptionError, match=f"^{name} is not an option of FastLoader: {advice}"):
            FastLoader(twenty, **{name: None})
        with pytest.raises(OptionError, match="dataset, batch_size and shuffle by position, found 5 as the fourth"):
            FastLoader(twenty, 4, True, 5)  # type: ignore[call-arg]

    def test_the_signature_and_the_docstring_have_every_option(self) -> None:
        parameters = list(inspect.signature(FastLoader).parameters.values())
        assert parameters[0].name == "dataset"
        assert parameters[1:] == list(inspect.signature(LoaderOptions).parameters.values())
        for each in parameters[1:]:
            assert re.search(rf"^    {each.name} +\S", FastLoader.__doc__ or "", re.MULTILINE), each.name

    @pytest.mark.parametrize(
        ("transform", "given", "expected"),
        [
            (T.train(8), None, torch.float32),
            (T.Views(one=[T.Resize((8, 8))], two=T.train(8)), None, torch.float32),
            ([T.Resize((8, 8))], None, torch.uint8),
            (T.train(8), "float16", torch.float16),
        ],
    )
    def test_dtypes(self, numbered: FastDataset, transform: Any, given: str | None, expected: torch.dtype) -> None:
        loader = FastLoader(numbered, 2, transform=transform, dtype=given)
        images, _ = next(iter(loader))
        assert {each.dtype for each in (images.values() if isinstance(images, dict) else [images])} == {expected}
        assert ("dtype=" in repr(loader)) == (given is not None)

    def test_a_transform_may_be_an_iterator(self, numbered: FastDataset) -> None:
        expected = digest(FastLoader(numbered, 8, transform=AUGMENT))
        assert digest(FastLoader(numbered, 8, transform=iter(AUGMENT))) == expected  # type: ignore[arg-type]
        assert digest(FastLoader(numbered, 8, transform=T.compile(AUGMENT))) == expected


class TestErrors:
    def test_sizes_that_differ(self, numbered: FastDataset) -> None:
        with pytest.raises(OptionError, match=r"must have one size, found \d+x\d+ and \d+x\d+: .*fixed size"):
            next(iter(FastLoader(numbered, 8)))
        images, _ = next(iter(FastLoader(numbered, 1)))
        assert images.shape[2:] == upright(IMAGES[0]).size[::-1]

    def test_an_image_smaller_than_its_crop(self, numbered: FastDataset) -> None:
        with pytest.raises(DecodeError, match=r"numbered\.lmdb: 0+: the box lies outside the image"):
            next(iter(FastLoader(numbered, 8, transform=[T.CenterCrop(500)])))

    @pytest.mark.parametrize("transform", [None, AUGMENT], ids=["none", "train"])
    @pytest.mark.parametrize("batch_size", [1, 6])
    def test_a_file_whose_header_cannot_be_read(self, tmp_path: Path, transform: Any, batch_size: int) -> None:
        folder = write_folder(tmp_path / "folder", [jpeg(photo(40, 30, i)) for i in range(6)])
        (folder / "bee" / "00003.jpg").write_bytes(b"\xff\xd8\xffnot a photograph")
        with pytest.raises(DecodeError, match=r"bee/00003\.jpg: .*corrupt"):
            list(FastLoader(FastDataset(folder), batch_size, transform=transform))


BATCH = 6  # of 20 samples: four batches, the last of two
RESIZE = [T.Resize((8, 8))]


def make(dataset: FastDataset, **options: Any) -> FastLoader:
    given = {"batch_size": BATCH, "shuffle": True, "transform": RESIZE, "num_workers": 1} | options
    return FastLoader(dataset, **given)


class TestAttributes:
    def test_those_of_torchs_dataloader(self, twenty: FastDataset) -> None:
        loader = make(twenty, drop_last=True, num_workers=2)
        assert (loader.batch_size, loader.drop_last, loader.num_workers) == (BATCH, True, 2)
        assert loader.dataset is twenty
        assert loader.batch_sampler is None
        assert not isinstance(loader, torch.utils.data.DataLoader)  # frameworks rebuild one, with a sampler that shards
        assert not hasattr(loader, "collate_fn")
        assert isinstance(make(twenty, num_workers="auto").num_workers, int)

    def test_what_to_do_instead_of_rebuilding_it(self, twenty: FastDataset) -> None:
        """Accelerate reads this attribute; `test_frameworks.py` asks Accelerate itself."""
        words = "^a FastLoader cannot be rebuilt .*load_state_dict.*ignore_data_skip=True"
        with pytest.raises(OptionError, match=words):
            _ = make(twenty).multiprocessing_context

    def test_none_can_be_assigned(self, twenty: FastDataset) -> None:
        loader = make(twenty)
        for name, option in (("batch_size", "batch_size"), ("dataset", "dataset"), ("batch_sampler", "order")):
            with pytest.raises(
                OptionError, match=f"^{name} of a loader cannot be changed .* FastLoader with {option}="
            ):
                setattr(loader, name, 1)
        for name in ("epoch", "batch"):
            with pytest.raises(AttributeError):
                setattr(loader, name, 1)

    def test_repr(self, twenty: FastDataset) -> None:
        loader = make(twenty, rank=1, world_size=2, dtype=torch.float32)
        assert repr(loader) == (
            f"FastLoader(FastDataset({twenty.path!r}): 20 samples, batch_size=6, shuffle=True, "
            "transform=[Resize(size=(8, 8), interpolation='bilinear', max_size=None)], dtype=torch.float32, "
            "num_workers=1, rank 1 of 2: 2 batches an epoch, next is batch 0 of epoch 0)"
        )
        assert repr(FastLoader(twenty)).endswith(
            ": 20 samples, rank 0 of 1: 20 batches an epoch, next is batch 0 of epoch 0)"
        )


class TestSampler:
    @pytest.mark.parametrize("rank", [0, 2])
    def test_has_this_ranks_indices(self, twenty: FastDataset, rank: int) -> None:
        loader = make(twenty, batch_size=2, rank=rank, world_size=3)
        assert not isinstance(loader.sampler, SequentialSampler | RandomSampler)  # Lightning would turn it off
        assert isinstance(make(twenty, shuffle=False).sampler, SequentialSampler)  # else it warns in validation
        for epoch in (0, 4):
            loader.sampler.set_epoch(epoch)
            wanted = list(loader.sampler)
            assert len(loader.sampler) == len(wanted) == 7  # of 20
            assert all_labels(loader) == wanted

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_validation_that_is_broken_off_begins_anew(self, twenty: FastDataset, shuffle: bool) -> None:
        """As Lightning calls it for `limit_val_batches`: several times within an epoch of training."""
        loader = make(twenty, batch_size=3, shuffle=shuffle, rank=0, world_size=2)
        loader.sampler.set_epoch(0)
        first = taken(loader, 2)
        loader.sampler.set_epoch(0)
        assert taken(loader, 2) == first
        if shuffle:
            with pytest.raises(StateError, match="would abandon epoch 0"):
                iter(loader)
