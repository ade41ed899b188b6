"""Policies: a few operations out of a list, drawn for each image, at strengths that are drawn too.

Each is described by `layers`: what is done first, then second, and so on. torchvision's are RandAugment,
TrivialAugmentWide, AutoAugment and AugMix; timm's are in timm_policy.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index

from iofast.errors import OptionError
from iofast.ops.moving import sampling
from iofast.ops.policy_tables import AUTO_POLICIES, WIDE, narrow
from iofast.ops.strengths import Layer, Named, Range, Strength


@dataclass(frozen=True, slots=True)
class RandAugment:
    """`num_ops` of 14 operations (Identity, shears, shifts, turns, colours, …), each as likely as the others.

    `magnitude` is which of `num_magnitude_bins` strengths they have. `fill` (0 to 1) is the colour of what shears,
    shifts and turns bring into the image; `interpolation` is "nearest" or "bilinear".
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        _count(self, "num_ops", self.num_ops, 0)
        _count(self, "num_magnitude_bins", self.num_magnitude_bins, 2)
        if not isinstance(self.magnitude, int) or not 0 <= self.magnitude < self.num_magnitude_bins:
            raise OptionError(f"RandAugment: magnitude must be 0 to num_magnitude_bins - 1, found {self.magnitude!r}")
        sampling(self)

    @property
    def layers(self) -> tuple[Layer, ...]:
        strength = Strength.fixed(self.magnitude / (self.num_magnitude_bins - 1))
        return (Layer.of(narrow("Identity"), strength),) * self.num_ops


@dataclass(frozen=True, slots=True)
class TrivialAugmentWide:
    """One of the same 14 operations, at one of `num_magnitude_bins` strengths that reach further."""

    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        _count(self, "num_magnitude_bins", self.num_magnitude_bins, 2)
        sampling(self)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (Layer.of(WIDE, Strength(0, 1, bins=self.num_magnitude_bins)),)


@dataclass(frozen=True, slots=True)
class AutoAugment:
    """One of 25 pairs of operations that were found for "imagenet", "cifar10" or "svhn", with the probabilities and
    strengths that were found with them."""

    policy: str = "imagenet"
    interpolation: str = "nearest"
    fill: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        given = getattr(self.policy, "value", self.policy)  # torchvision's AutoAugmentPolicy
        if given not in AUTO_POLICIES:
            raise OptionError(f"AutoAugment: policy must be {', '.join(AUTO_POLICIES)}, found {self.policy!r}")
        object.__setattr__(self, "policy", given)
        sampling(self)

    @property
    def layers(self) -> tuple[Layer, ...]:
        ranges = narrow("Invert")
        pairs = AUTO_POLICIES[self.policy]
        layers = []
        for place in range(2):
            chosen = [pair[place] for pair in pairs]
            entries = [Named(name, ranges[name], Strength.fixed(level / 9), p) for name, p, level in chosen]
            layers.append(Layer(tuple(entries), choice="pair"))
        return tuple(layers)


@dataclass(frozen=True, slots=True)
class AugMix:
    """The image, and `mixture_width` chains of operations on it, in random shares.

    A chain has `chain_depth` operations, or 1 to 3 where that is not above 0, of strengths up to `severity` tenths.
    Shares are drawn from Dirichlet distributions of `alpha`. Without `all_ops` brightness, colour, contrast and
    sharpness are left out, as the paper has it.
    """

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: str = "bilinear"
    fill: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        _count(self, "severity", self.severity, 1)
        if self.severity > 10:
            raise OptionError(f"AugMix: severity must be 1 to 10, found {self.severity!r}")
        _count(self, "mixture_width", self.mixture_width, 1)
        if not isinstance(self.chain_depth, int):
            raise OptionError(f"AugMix: chain_depth must be a whole number, found {self.chain_depth!r}")
        if not isinstance(self.alpha, int | float) or not 0 < self.alpha < math.inf:
            raise OptionError(f"AugMix: alpha must be above 0, found {self.alpha!r}")
        sampling(self)

    @property
    def depth(self) -> int:
        """The most operations of a chain."""
        return self.chain_depth if self.chain_depth > 0 else 3

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Of one chain."""
        space = narrow()
        space["TranslateX"] = Range(0, 1 / 3, signed=True, of="width", whole="down")
        space["TranslateY"] = Range(0, 1 / 3, signed=True, of="height", whole="down")
        space["Posterize"] = Range(4, 0, whole="round")
        for name in () if self.all_ops else ("Brightness", "Color", "Contrast", "Sharpness"):
            del space[name]
        strength = Strength(0, (self.severity - 1) / 9, bins=self.severity)
        return (Layer.of(space, strength),) * self.depth


@dataclass(frozen=True, slots=True)
class TimmAugment:
    """What `timm_policy` makes of a string: so many `layers`, one after the other, or `mixture_width` chains of them as
    `AugMix` has them."""

    config: str
    layers: tuple[Layer, ...] = field(repr=False)
    interpolation: str = "bilinear"
    fill: float | Sequence[float] = (124 / 255, 116 / 255, 104 / 255)
    mixture_width: int = 0
    chain_depth: int = -1
    alpha: float = 1.0

    def __post_init__(self) -> None:
        sampling(self)

    def __repr__(self) -> str:
        return f"timm_policy({self.config!r}, interpolation={self.interpolation!r}, fill={self.fill!r})"


Policy = RandAugment | TrivialAugmentWide | AutoAugment | AugMix | TimmAugment


def _count(op: Policy, name: str, value: object, least: int) -> None:
    try:
        whole = index(value)  # type: ignore[arg-type]
    except TypeError:
        whole = least - 1
    if whole < least:
        raise OptionError(f"{type(op).__name__}: {name} must be a whole number from {least} on, found {value!r}")
