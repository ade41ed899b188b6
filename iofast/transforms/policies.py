"""Policies: a few random operations of a list for each image, at random strengths.

`layers` of a policy are its operations in the order in which they are done. torchvision's are RandAugment,
TrivialAugmentWide and AutoAugment; timm's RandAugment is in timm_policy.py.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache

from iofast.arguments import check_fields, checked, integer
from iofast.errors import OptionError
from iofast.transforms.arguments import colour, warp_filter
from iofast.transforms.layers import Layer, Named, Strength
from iofast.transforms.policy_tables import AUTO_POLICIES, WIDE, Chosen, narrow
from iofast.transforms.transform import DrawnImages, ImageOp, Program, in_a_row


class Policy(ImageOp):
    """A policy: its `layers`, one after the other."""

    drawn_as, moves = "policy", True
    interpolation: str
    fill: float | Sequence[float]

    @property
    @abstractmethod
    def layers(self) -> tuple[Layer, ...]:
        """What is done to an image, in this order."""

    def draw(self, images: DrawnImages, name: str) -> Program:
        programs = [layer.draw(self, number, images, name) for number, layer in enumerate(_layers(self))]
        return in_a_row(programs, len(images))


@lru_cache(maxsize=64)
def _layers(policy: Policy) -> tuple[Layer, ...]:
    """`policy.layers`; they take as long to make as to draw."""
    return policy.layers


@checked(num_ops=integer(0), num_magnitude_bins=integer(2), interpolation=warp_filter, fill=colour)
class RandAugment(Policy):
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
        check_fields(self, magnitude=integer(0, self.num_magnitude_bins - 1))

    @property
    def layers(self) -> tuple[Layer, ...]:
        strength = Strength.fixed(self.magnitude / (self.num_magnitude_bins - 1))
        return (Layer.of(narrow("Identity"), strength),) * self.num_ops


@checked(num_magnitude_bins=integer(2), interpolation=warp_filter, fill=colour)
class TrivialAugmentWide(Policy):
    """One of RandAugment's 14 operations, at one of `num_magnitude_bins` strengths of a wider range."""

    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: float | Sequence[float] = 0.0

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (Layer.of(WIDE, Strength(0, 1, bins=self.num_magnitude_bins)),)


@checked(interpolation=warp_filter, fill=colour)
class AutoAugment(Policy):
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
        """Two layers that choose a pair together."""
        space = narrow("Invert")

        def layer(chosen: Iterable[Chosen]) -> Layer:
            named = (Named(name, space[name], Strength.fixed(level / 9), p) for name, p, level in chosen)
            return Layer(tuple(named), choice="pair")

        firsts, seconds = zip(*AUTO_POLICIES[self.policy], strict=True)
        return layer(firsts), layer(seconds)
