"""timm's RandAugment, by its strings, such as "rand-m9-mstd0.5-inc1"."""

import re
from collections.abc import Mapping, Sequence

from iofast.arguments import checked
from iofast.errors import OptionError
from iofast.transforms.arguments import colour, warp_filter
from iofast.transforms.layers import Layer, Named, Strength
from iofast.transforms.policies import Policy
from iofast.transforms.policy_tables import TIMM_SETS, TIMM_SPACES

_LEVELS = 10.0  # of magnitudes
_PARTS = {"m": _LEVELS, "n": 2, "p": 0.5, "mstd": 0, "mmax": _LEVELS, "inc": 0}  # of a string, with their defaults


@checked(interpolation=warp_filter, fill=colour)
class TimmAugment(Policy):
    """The policy of a `timm_policy` string."""

    config: str
    interpolation: str = "bilinear"
    fill: float | Sequence[float] = (124 / 255, 116 / 255, 104 / 255)

    def __post_init__(self) -> None:
        _parsed(self.config)

    def __repr__(self) -> str:
        return f"timm_policy({self.config!r}, interpolation={self.interpolation!r}, fill={self.fill!r})"

    @property
    def layers(self) -> tuple[Layer, ...]:
        return _parsed(self.config)


def timm_policy(
    config: str, *, interpolation: str = "bilinear", fill: float | Sequence[float] = (124 / 255, 116 / 255, 104 / 255)
) -> TimmAugment:
    """The operation that timm calls by a string such as "rand-m9-mstd0.5-inc1".

    m: magnitude of 10; n: number of operations; p: probability of each; mstd: deviation of the magnitude, above 100
    uniform from 0 to the magnitude; mmax: greatest magnitude; inc1: operations that grow stronger with the magnitude;
    tweights: operations chosen by weights.

    `fill` is timm's `img_mean`: the mean of the images' normalisation. Raises `OptionError` for any other string.
    """
    return TimmAugment(config, interpolation, fill)


def _parsed(config: str) -> tuple[Layer, ...]:
    """The layers of a string. Raises `OptionError` if it is none of timm's."""
    first, *parts = config.split("-") if isinstance(config, str) else [""]
    if first != "rand":
        raise OptionError(f"timm_policy: expected rand with its parts, such as rand-m9-mstd0.5-inc1, found {config!r}")
    chosen, numbers = "", dict(_PARTS)
    for part in parts:
        found = re.fullmatch(r"([a-z]+)(\d+(?:\.\d*)?)", part)  # a key and its number
        if found and found[1] in numbers:
            numbers[found[1]] = float(found[2])
        elif part[:1] == "t" and part[1:] in TIMM_SETS:
            chosen = part[1:]
        else:
            raise OptionError(f"timm_policy: expected parts {', '.join(_PARTS)}, t, found {part!r} in {config!r}")
    return _layers(numbers, chosen)


def _layers(numbers: Mapping[str, float], chosen: str) -> tuple[Layer, ...]:
    space, names = TIMM_SPACES[bool(numbers["inc"] or chosen)], TIMM_SETS[chosen]
    if isinstance(names, Mapping) and numbers["n"] > len(names):  # weighted layers choose different entries
        raise OptionError(f"timm_policy: n must be at most {len(names)} with t{chosen}, found {numbers['n']:g}")
    magnitude, std, most = (numbers[key] / _LEVELS for key in ("m", "mstd", "mmax"))
    is_uniform = numbers["mstd"] > 100
    strength = Strength(0 if is_uniform else magnitude, magnitude, std=0 if is_uniform else std, most=most)
    entries = tuple(Named(name, space[name], strength, numbers["p"]) for name in names)
    layer = Layer(entries, weights=tuple(names.values()) if isinstance(names, Mapping) else None)
    return (layer,) * int(numbers["n"])
