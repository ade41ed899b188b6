"""A list of transforms becomes a pipeline, or an error that names the wrong transform and what to use instead."""

from itertools import product
from typing import Any

import pytest

from iofast import transforms as T
from iofast.errors import OptionError


class TestCompile:
    FIXED = (T.RandomHorizontalFlip(), T.Normalize.imagenet())

    @pytest.mark.parametrize(
        ("geometry", "size", "evaluation"),
        [
            ([], None, True),
            ([T.Resize(8)], None, True),
            ([T.Resize((8, 9))], (8, 9), True),
            ([T.CenterCrop((8, 9))], (8, 9), True),
            ([T.Resize(20), T.CenterCrop(8)], (8, 8), True),
            ([T.RandomCrop(8)], (8, 8), False),
            ([T.Resize((20, 30)), T.RandomCrop((8, 9))], (8, 9), False),
            ([T.RandomResizedCrop((8, 9))], (8, 9), False),
            ([T.Resize(8), T.CenterCrop((12, 8))], (12, 8), True),  # upright images can have it
        ],
    )
    def test_what_is_allowed(self, geometry: list[T.Transform], size: tuple[int, int] | None, evaluation: bool) -> None:
        for flip, normalize in product((True, False), repeat=2):
            chosen = [each for each, wanted in zip(self.FIXED, (flip, normalize), strict=True) if wanted]
            pipeline = T.compile([*geometry, *chosen])
            assert pipeline.size == size
            assert pipeline.evaluation == (evaluation and not flip)
            assert pipeline.ops == ((T.Normalize.imagenet(),) if normalize else ())

    @pytest.mark.parametrize(
        "transforms",
        [
            [T.Normalize.imagenet(), T.Resize(8)],
            [T.RandomHorizontalFlip(), T.RandomResizedCrop(8)],
            [T.Normalize.imagenet(), T.RandomHorizontalFlip()],
            [T.CenterCrop(8), T.Resize(8)],
            [T.CenterCrop(8), T.CenterCrop(8)],
            [T.Resize(8), T.Resize(8)],
            [T.RandomResizedCrop(8), T.CenterCrop(8)],
            [T.RandAugment(), T.RandomResizedCrop(8)],
            [T.Resize(8), T.ResizeToBucket([(8, 8)])],
            [T.ResizeToBucket([(8, 8)]), T.CenterCrop(3)],
            [T.Normalize.imagenet(), T.ColorJitter(0.4)],
            [T.RandomErasing(), T.RandomGrayscale()],
            [T.ColorJitter(0.4), T.RandomResizedCrop(8)],
            [T.MixUp(num_classes=3), T.Normalize.imagenet()],
            [T.MixUp(num_classes=3), T.CutMix(num_classes=3)],
            [len],
            [T.RandomResizedCrop],
        ],
    )
    def test_any_other_order_says_what_is_allowed(self, transforms: list[T.Transform]) -> None:
        allowed = r": expected ResizeToBucket, or Resize .* then operations on images .*RandomChoice of them"
        with pytest.raises(OptionError, match=rf"^[^:]+ (cannot follow [^:]+|is no transform of iofast){allowed}"):
            T.compile(transforms)

    @pytest.mark.parametrize(
        ("name", "advice"),
        [
            ("Compose", "Compose is not needed: a transform is a plain list"),
            ("ToTensor", "ToTensor is not needed: batches are tensors"),
            ("Resize", "use iofast.transforms.Resize"),
            ("Mine", "functions of your own are the loader's map_sample"),
        ],
    )
    def test_another_librarys_transform(self, name: str, advice: str) -> None:
        theirs = type(name, (), {"__module__": "torchvision.transforms.v2", "__call__": lambda self, image: image})
        message = f"^torchvision.transforms.v2.{name} is no transform of iofast: expected .*; {advice}"
        with pytest.raises(OptionError, match=message):
            T.compile([T.RandomResizedCrop(8), theirs()])
        if name == "Compose":
            with pytest.raises(OptionError, match=f"^transform must be a list .*; {advice}"):
                T.compile(theirs())
        with pytest.raises(OptionError, match=r"^<class '.*RandomResizedCrop'> .*; write RandomResizedCrop\(…\)"):
            T.compile([T.RandomResizedCrop])  # type: ignore[list-item]

    @pytest.mark.parametrize(
        ("transforms", "message"),
        [
            ([T.Resize(8), T.CenterCrop(9)], "the crop is larger"),
            ([T.Resize((8, 20)), T.RandomCrop(9)], "the crop is larger"),
            ([T.Resize((20, 8)), T.CenterCrop(9)], "the crop is larger"),
            (T.evaluate(224, 200), "the crop is larger"),
            ([T.RandAugment(300)], "fewer than 255 steps or rectangles, found 300"),
            ([T.RandomErasing(1.0, count=64)] * 4, "found 256"),
            (T.Resize(8), "must be a list"),
        ],
    )
    def test_what_no_image_can_have(self, transforms: Any, message: str) -> None:
        with pytest.raises(OptionError, match=message):
            T.compile(transforms)

    def test_a_list_or_a_pipeline(self) -> None:
        assert T.compile(None) == T.compile([]) == T.Pipeline()
        assert T.compile(T.compile([T.Resize(8)])) == T.compile([T.Resize(8)])

    def test_presets(self) -> None:
        assert T.train(96) == [T.RandomResizedCrop(96), T.RandomHorizontalFlip(), T.Normalize.imagenet()]
        assert T.evaluate() == [T.Resize(256), T.CenterCrop(224), T.Normalize.imagenet()]
        assert T.evaluate(112)[0] == T.Resize(128)
        assert T.evaluate(224, 232)[0] == T.Resize(232)


class TestNamesOfOthers:
    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("ToTensor", "ToTensor .*: batches are tensors, and the loader's dtype=torch.float32 scales them"),
            ("Compose", "Compose .*a transform is a plain list"),
            ("Mixup", "Mixup is MixUp here"),
            ("ElasticTransform", "ElasticTransform .*call torchvision's .* in the loader's map_sample"),
            ("RandomResisedCrop", r"did you mean RandomResizedCrop\?$"),
        ],
    )
    def test_say_what_takes_their_place(self, name: str, hint: str) -> None:
        with pytest.raises(AttributeError, match=f"^module 'iofast.transforms' has no attribute '{name}': {hint}"):
            getattr(T, name)
