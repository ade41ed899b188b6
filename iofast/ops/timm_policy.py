"""timm's policies, by its strings: "rand-m9-mstd0.5-inc1", "augmix-m5-w4-d2", "original-mstd0.5", "v0", "3a"."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from iofast.errors import OptionError
from iofast.ops.policies import TimmAugment, pair_layers
from iofast.ops.policy_tables import TIMM_CHAIN, TIMM_PAIRS, TIMM_SETS, TIMM_SPACES
from iofast.ops.strengths import Layer, Named, Range, Space, Strength

_LEVELS = 10.0  # of magnitudes
_PARTS: Mapping[str, Mapping[str, float]] = {  # the parts of a string, with their defaults
    "rand": {"m": _LEVELS, "n": 2, "p": 0.5, "mstd": 0, "mmax": _LEVELS, "inc": 0},
    "augmix": {"m": 3, "w": 3, "d": -1, "a": 1, "b": 0, "mstd": math.inf},
    **{name: {"mstd": 0} for name in TIMM_PAIRS},
    "3a": {},
}


def timm_policy(
    config: str,
    *,
    interpolation: str = "bilinear",
    fill: float | Sequence[float] = (124 / 255, 116 / 255, 104 / 255),
) -> TimmAugment:
    """The operation that timm calls by a string such as "rand-m9-mstd0.5-inc1".

    rand: RandAugment. m: magnitude of 10; n: number of operations; p: probability of each; mstd: deviation of the
    magnitude, above 100 uniform from 0 to the magnitude; mmax: greatest magnitude; inc1: operations that grow stronger
    with the magnitude; tweights, t3a, t3aw: other lists of operations.
    augmix: AugMix. m; w: number of chains; d: operations in each, else 1 to 3; a: alpha of the shares; mstd, by default
    uniform; b, how images are added up, makes no difference here.
    original, originalr, v0, v0r: AutoAugment for ImageNet, of the paper and of EfficientNet; mstd. 3a: 3-Augment.

    `fill` is timm's `img_mean`: the mean of the images' normalisation. Raises `OptionError` for any other string.
    """
    first, *parts = config.split("-") if isinstance(config, str) else [""]
    if first not in _PARTS:
        expected = f"expected {', '.join(_PARTS)}, such as rand-m9-mstd0.5-inc1"
        raise OptionError(f"timm_policy: {expected}, found {config!r}")
    sets = [part[1:] for part in parts if first == "rand" and part[:1] == "t" and part[1:] in TIMM_SETS]
    numbers = dict(_PARTS[first])
    for part in parts:
        key, number = _split(part)
        if key in numbers and number is not None:
            numbers[key] = number
        elif part[1:] not in sets:
            expected = ", ".join([*numbers, *(["t"] if first == "rand" else [])]) or "no parts"
            raise OptionError(f"timm_policy: expected parts {expected} of {first}, found {part!r} in {config!r}")
    if first == "augmix":
        if numbers["w"] < 1 or numbers["a"] == 0:
            raise OptionError(f"timm_policy: w must be 1 or more and a above 0, found {config!r}")
        width, depth = int(numbers["w"]), int(numbers["d"])
        return TimmAugment(config, _chain(numbers), interpolation, fill, width, depth, numbers["a"])
    if first == "rand":
        return TimmAugment(config, _rand(numbers, sets[-1] if sets else ""), interpolation, fill)
    layers = _three() if first == "3a" else _pairs(first, numbers)
    return TimmAugment(config, layers, interpolation, fill)


def _split(part: str) -> tuple[str, float | None]:
    """A key and its number: ("mstd", 0.5) of "mstd0.5"."""
    found = re.fullmatch(r"([a-z]+)(\d+(?:\.\d*)?)", part)
    return (found[1], float(found[2])) if found else (part, None)


def _rand(numbers: Mapping[str, float], chosen: str) -> tuple[Layer, ...]:
    space, names = TIMM_SPACES[bool(numbers["inc"] or chosen)], TIMM_SETS[chosen]
    if isinstance(names, Mapping) and numbers["n"] > len(names):  # weighted layers choose different entries
        raise OptionError(f"timm_policy: n must be at most {len(names)} with t{chosen}, found {numbers['n']:g}")
    strength = _strength(numbers["m"], numbers["mstd"], numbers["mmax"])
    entries = tuple(Named(name, space[name], strength, numbers["p"]) for name in names)
    layer = Layer(entries, weights=tuple(names.values()) if isinstance(names, Mapping) else None)
    return (layer,) * int(numbers["n"])


def _chain(numbers: Mapping[str, float]) -> tuple[Layer, ...]:
    strength = _strength(numbers["m"], numbers["mstd"], _LEVELS)
    return (Layer.of(TIMM_CHAIN, strength),) * int(numbers["d"] if numbers["d"] > 0 else 3)


def _pairs(name: str, numbers: Mapping[str, float]) -> tuple[Layer, ...]:
    posterize, pairs = TIMM_PAIRS[name]
    space: Space = {**TIMM_SPACES[0], "Posterize": posterize}
    return pair_layers(pairs, space, lambda level: _strength(level, numbers["mstd"], _LEVELS))


def _three() -> tuple[Layer, ...]:
    """Solarize from the middle on, gray, or a blur of any deviation."""
    solarize, gray = (Strength.fixed(level) for level in (0.5, 1.0))
    entries = (
        Named("Solarize", TIMM_SPACES[0]["Solarize"], solarize, 1.0),
        Named("Desaturate", TIMM_SPACES[0]["Desaturate"], gray, 1.0),
        Named("GaussianBlur", Range(0.1, 2), Strength(0, 1), 1.0),
    )
    return (Layer(entries),)


def _strength(magnitude: float, std: float, most: float) -> Strength:
    if std > 100:
        return Strength(0, magnitude / _LEVELS, most=most / _LEVELS)
    return Strength(magnitude / _LEVELS, magnitude / _LEVELS, std=std / _LEVELS, most=most / _LEVELS)
