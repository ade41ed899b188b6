"""Policies: a few random operations of a list for each image, at random strengths.

`layers` of a policy are its operations in the order in which they are done. torchvision's are RandAugment,
TrivialAugmentWide, AutoAugment and AugMix; timm's are in timm_policy.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field

from iofast.errors import OptionError
from iofast.ops.arguments import above_zero, check_fields, colour, operation, warp_filter, whole
from iofast.ops.policy_tables import AUTO_POLICIES, WIDE, Chosen, narrow
from iofast.ops.strengths import Layer, Named, Range, Space, Strength


@operation(num_ops=whole(0), num_magnitude_bins=whole(2), interpolation=warp_filter, fill=colour)
class RandAugment:
    """`num_ops` of 14 operations (Identity, shears, shifts, rotations, colours, …), all equally likely.

    `magnitude` is their strength, of `num_magnitude_bins`. Shears, shifts and rotations fill the empty parts of the
    image with the colour `fill` (0 to 1). `interpolation` is "nearest" or "bilinear".
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        check_fields(self, magnitude=whole(0, self.num_magnitude_bins - 1))

    @property
    def layers(self) -> tuple[Layer, ...]:
        strength = Strength.fixed(self.magnitude / (self.num_magnitude_bins - 1))
        return (Layer.of(narrow("Identity"), strength),) * self.num_ops


@operation(num_magnitude_bins=whole(2), interpolation=warp_filter, fill=colour)
class TrivialAugmentWide:
    """One of RandAugment's 14 operations, at one of `num_magnitude_bins` strengths of a wider range."""

    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: float | Sequence[float] = 0.0

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (Layer.of(WIDE, Strength(0, 1, bins=self.num_magnitude_bins)),)


@operation(interpolation=warp_filter, fill=colour)
class AutoAugment:
    """One of 25 pairs of operations found for "imagenet", "cifar10" or "svhn", at their probabilities and strengths."""

    policy: str = "imagenet"
    interpolation: str = "nearest"
    fill: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        policy = getattr(self.policy, "value", self.policy)  # torchvision's AutoAugmentPolicy
        if not isinstance(policy, str) or policy not in AUTO_POLICIES:
            raise OptionError(f"AutoAugment: policy must be {', '.join(AUTO_POLICIES)}, found {self.policy!r}")
        object.__setattr__(self, "policy", policy)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return pair_layers(AUTO_POLICIES[self.policy], narrow("Invert"), lambda level: Strength.fixed(level / 9))


@operation(severity=whole(1, 10), mixture_width=whole(1), alpha=above_zero, interpolation=warp_filter, fill=colour)
class AugMix:
    """A mix of the image and the results of `mixture_width` chains of operations, in random shares.

    A chain has `chain_depth` operations (not above 0: 1 to 3) of strengths up to `severity` tenths. Shares come from
    Dirichlet distributions of `alpha`. Without `all_ops` brightness, colour, contrast and sharpness are left out, as in
    the paper.
    """

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: str = "bilinear"
    fill: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.chain_depth, int):
            raise OptionError(f"AugMix: chain_depth must be a whole number, found {self.chain_depth!r}")

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of one chain."""
        space = narrow()
        space["TranslateX"] = Range(0, 1 / 3, signed=True, of="width", whole="down")
        space["TranslateY"] = Range(0, 1 / 3, signed=True, of="height", whole="down")
        space["Posterize"] = Range(4, 0, whole="round")
        for name in () if self.all_ops else ("Brightness", "Color", "Contrast", "Sharpness"):
            del space[name]
        strength = Strength(0, (self.severity - 1) / 9, bins=self.severity)
        return (Layer.of(space, strength),) * (self.chain_depth if self.chain_depth > 0 else 3)


@operation(interpolation=warp_filter, fill=colour)
class TimmAugment:
    """The policy of a `timm_policy` string: `layers` in a row, or `mixture_width` chains of them as in `AugMix`."""

    config: str
    layers: tuple[Layer, ...] = field(repr=False)
    interpolation: str = "bilinear"
    fill: float | Sequence[float] = (124 / 255, 116 / 255, 104 / 255)
    mixture_width: int = 0
    chain_depth: int = -1
    alpha: float = 1.0

    def __repr__(self) -> str:
        return f"timm_policy({self.config!r}, interpolation={self.interpolation!r}, fill={self.fill!r})"


Policy = RandAugment | TrivialAugmentWide | AutoAugment | AugMix | TimmAugment


def pair_layers(
    pairs: Sequence[tuple[Chosen, Chosen]], space: Space, strength: Callable[[int], Strength]
) -> tuple[Layer, Layer]:
    """Two layers that choose a pair together; `strength` turns the level of a table into a strength."""

    def layer(chosen: Iterable[Chosen]) -> Layer:
        return Layer(tuple(Named(name, space[name], strength(level), p) for name, p, level in chosen), choice="pair")

    firsts, seconds = zip(*pairs, strict=True)
    return layer(firsts), layer(seconds)
