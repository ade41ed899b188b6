"""A list of transforms becomes a pipeline, or an error that names the wrong transform and what to use instead."""

from __future__ import annotations

from itertools import product

import pytest

from iofast import transforms as T
from iofast.errors import OptionError
from iofast.transforms.elsewhere import HINTS


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
        ],
    )
    def test_what_is_allowed(self, geometry: list[T.Transform], size: tuple[int, int] | None, evaluation: bool) -> None:
        for flip, normalize in product((True, False), repeat=2):
            chosen = [each for each, wanted in zip(self.FIXED, (flip, normalize), strict=True) if wanted]
            pipeline = T.compile([*geometry, *chosen])
            assert pipeline.size == size
            assert pipeline.evaluation == (evaluation and not flip)
            assert pipeline.ops == ((T.Normalize.imagenet(),) if normalize else ())

    def test_too_many_steps(self) -> None:
        with pytest.raises(OptionError, match="fewer than 255 steps or rectangles, found 300"):
            T.compile([T.RandAugment(300)])
        with pytest.raises(OptionError, match="found 256"):
            T.compile([T.RandomErasing(1.0, count=64)] * 4)

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
        "transforms",
        [
            [T.Resize(8), T.CenterCrop(9)],
            [T.Resize((8, 20)), T.RandomCrop(9)],
            [T.Resize((20, 8)), T.CenterCrop(9)],
            T.evaluate(224, 200),
        ],
    )
    def test_a_crop_that_no_resized_image_can_have(self, transforms: list[T.Transform]) -> None:
        with pytest.raises(OptionError, match="the crop is larger"):
            T.compile(transforms)

    def test_a_crop_that_upright_images_can_have(self) -> None:
        assert T.compile([T.Resize(8), T.CenterCrop((12, 8))]).size == (12, 8)

    def test_not_a_list(self) -> None:
        with pytest.raises(OptionError, match="must be a list"):
            T.compile(T.Resize(8))  # type: ignore[arg-type]
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
            ("ToTensor", "is not needed: batches are tensors, and the loader's dtype=torch.float32 scales them"),
            ("Compose", "a transform is a plain list"),
            ("Mixup", "is MixUp here"),
            ("ElasticTransform", "call torchvision's .* in the loader's map_sample"),
        ],
    )
    def test_say_what_takes_their_place(self, name: str, hint: str) -> None:
        with pytest.raises(
            AttributeError, match=f"^module 'iofast.transforms' has no attribute '{name}': {name} .*{hint}"
        ):
            getattr(T, name)

    def test_that_nobody_has(self) -> None:
        with pytest.raises(
            AttributeError, match=r"no attribute 'RandomResisedCrop': did you mean RandomResizedCrop\?$"
        ):
            T.RandomResisedCrop  # type: ignore[attr-defined]  # noqa: B018

    def test_none_is_one_of_ours(self) -> None:
        assert not set(T.__all__) & set(HINTS)
