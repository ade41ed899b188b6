"""timm's policies, by its strings: "rand-m9-mstd0.5-inc1", "augmix-m5-w4-d2", "original-mstd0.5", "v0", "3a"."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from iofast.errors import OptionError
from iofast.ops.policies import TimmAugment
from iofast.ops.policy_tables import TIMM_CHAIN, TIMM_PAIRS, TIMM_SETS, TIMM_SPACES, Space
from iofast.ops.strengths import Layer, Named, Range, Strength

_LEVELS = 10.0  # of magnitudes
_PARTS: Mapping[str, Mapping[str, float]] = {  # of a string, and what they are where it does not say so
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

    rand: RandAugment. m: magnitude of 10; n: how many operations; p: the probability of each; mstd: the deviation of
    its magnitude, above 100 any from 0 to the magnitude; mmax: the largest magnitude; inc1: operations that grow
    stronger with it; tweights, t3a, t3aw: other lists.
    augmix: AugMix. m; w: how many chains; d: how many operations in each, else 1 to 3; a: alpha of the shares; mstd,
    without it as above 100; b, how images are added up, makes no difference here.
    original, originalr, v0, v0r: AutoAugment for ImageNet, of the paper and of EfficientNet; mstd. 3a: 3-Augment.

    `fill` is timm's `img_mean` (pass the mean that images are normalised with).
    """
    first, *parts = config.split("-") if isinstance(config, str) else [""]
    if first not in _PARTS:
        found = f"found {config!r}"
        raise OptionError(f"timm_policy: expected {', '.join(_PARTS)}, such as rand-m9-mstd0.5-inc1, {found}")
    sets = [part[1:] for part in parts if first == "rand" and part[:1] == "t" and part[1:] in TIMM_SETS]
    given = dict(_PARTS[first])
    for part in parts:
        key, number = _split(part)
        if key in given and number is not None:
            given[key] = number
        elif part[1:] not in sets:
            expected = ", ".join([*given, *(["t"] if first == "rand" else [])]) or "no parts"
            raise OptionError(f"timm_policy: expected parts {expected} of {first}, found {part!r} in {config!r}")
    if first == "augmix":
        chain, width = _chain(given), int(given["w"])
        if width < 1 or given["a"] == 0:
            raise OptionError(f"timm_policy: w must be 1 or more and a above 0, found {config!r}")
        return TimmAugment(config, chain, interpolation, fill, width, int(given["d"]), given["a"])
    if first == "rand":
        return TimmAugment(config, _rand(given, sets[-1] if sets else ""), interpolation, fill)
    layers = _three() if first == "3a" else _pairs(first, given)
    return TimmAugment(config, layers, interpolation, fill)


def _split(part: str) -> tuple[str, float | None]:
    """A key and its number: "mstd0.5" is ("mstd", 0.5)."""
    found = re.fullmatch(r"([a-z]+)(\d+(?:\.\d*)?)", part)
    return (found[1], float(found[2])) if found else (part, None)


def _rand(given: Mapping[str, float], chosen: str) -> tuple[Layer, ...]:
    space, names = TIMM_SPACES[bool(given["inc"] or chosen)], TIMM_SETS[chosen]
    strength = _strength(given["m"], given["mstd"], given["mmax"])
    entries = tuple(Named(name, space[name], strength, given["p"]) for name in names)
    layer = Layer(entries, weights=tuple(names.values()) if isinstance(names, Mapping) else None)
    return (layer,) * int(given["n"])


def _chain(given: Mapping[str, float]) -> tuple[Layer, ...]:
    strength = _strength(given["m"], given["mstd"], _LEVELS)
    return (Layer.of(TIMM_CHAIN, strength),) * int(given["d"] if given["d"] > 0 else 3)


def _pairs(name: str, given: Mapping[str, float]) -> tuple[Layer, ...]:
    posterize, pairs = TIMM_PAIRS[name]
    space: Space = {**TIMM_SPACES[0], "Posterize": posterize}
    layers = []
    for place in range(2):
        chosen = [pair[place] for pair in pairs]
        entries = [Named(op, space[op], _strength(level, given["mstd"], _LEVELS), p) for op, p, level in chosen]
        layers.append(Layer(tuple(entries), choice="pair"))
    return tuple(layers)


def _three() -> tuple[Layer, ...]:
    """Solarized from the middle on, gray, or blurred by any deviation."""
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
