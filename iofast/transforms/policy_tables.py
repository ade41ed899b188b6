"""The tables of policies: ranges of their operations, and AutoAugment's pairs.

Sources: the papers AutoAugment (arXiv 1805.09501), RandAugment (1909.13719) and TrivialAugment (2103.10158), with
torchvision's ranges; timm's auto_augment.py.
"""

from collections.abc import Mapping

from iofast.transforms.layers import Range, Space


def narrow(*more: str) -> dict[str, Range | None]:
    """RandAugment's and AutoAugment's operations, and `more` operations without a number."""
    factor, shear, third = Range(1, 1.9, signed=True), Range(0, 0.3, signed=True), 150 / 331
    return {
        "ShearX": shear,
        "ShearY": shear,
        "TranslateX": Range(0, third, signed=True, of="width", rounded="down"),
        "TranslateY": Range(0, third, signed=True, of="height", rounded="down"),
        "Rotate": Range(0, 30, signed=True),
        "Brightness": factor,
        "Color": factor,
        "Contrast": factor,
        "Sharpness": factor,
        "Posterize": Range(8, 4, rounded="round"),
        "Solarize": Range(255, 0),
        "AutoContrast": None,
        "Equalize": None,
        **dict.fromkeys(more),
    }


_WIDE_FACTOR, _WIDE_SHIFT = Range(1, 1.99, signed=True), Range(0, 32, signed=True, rounded="down")
WIDE: Space = {
    **narrow("Identity"),
    "ShearX": Range(0, 0.99, signed=True),
    "ShearY": Range(0, 0.99, signed=True),
    "TranslateX": _WIDE_SHIFT,
    "TranslateY": _WIDE_SHIFT,
    "Rotate": Range(0, 135, signed=True),
    "Brightness": _WIDE_FACTOR,
    "Color": _WIDE_FACTOR,
    "Contrast": _WIDE_FACTOR,
    "Sharpness": _WIDE_FACTOR,
    "Posterize": Range(8, 2, rounded="round"),
}

_TIMM_FACTOR = Range(0.1, 1.9)
_TIMM_GROWING = Range(1, 1.9, signed=True, least=0.1)
_TIMM_BOTH: Space = {
    "AutoContrast": None,
    "Equalize": None,
    "Invert": None,
    "Rotate": Range(0, 30, signed=True),
    "SolarizeAdd": Range(0, 110, rounded="down"),
    "ShearX": Range(0, 0.3, signed=True),
    "ShearY": Range(0, 0.3, signed=True),
    "TranslateX": Range(0, 0.45, signed=True, of="width"),
    "TranslateY": Range(0, 0.45, signed=True, of="height"),
}
_TIMM_COLOURS = ("Color", "Contrast", "Brightness", "Sharpness")
TIMM_SPACES: tuple[Space, Space] = (  # without inc1, and with it
    {
        **_TIMM_BOTH,
        **dict.fromkeys(_TIMM_COLOURS, _TIMM_FACTOR),
        "Posterize": Range(0, 4, rounded="down"),
        "Solarize": Range(0, 256, rounded="down"),
    },
    {
        **_TIMM_BOTH,
        **dict.fromkeys(_TIMM_COLOURS, _TIMM_GROWING),
        "Posterize": Range(4, 0, rounded="up"),
        "Solarize": Range(256, 0, rounded="up"),
    },
)

_TIMM_ALL = (
    *("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", *_TIMM_COLOURS),
    *("ShearX", "ShearY", "TranslateX", "TranslateY"),
)
# operations, or their weights, by timm's part "t"; the weighted ones use the ranges of inc1
TIMM_SETS: Mapping[str, tuple[str, ...] | Mapping[str, float]] = {
    "": _TIMM_ALL,
    "weights": {
        "Rotate": 3.0,
        "ShearX": 2.0,
        "ShearY": 2.0,
        "TranslateX": 1.0,
        "TranslateY": 1.0,
        **dict.fromkeys(("Color", "Sharpness", "AutoContrast"), 0.25),
        **dict.fromkeys(("Solarize", "SolarizeAdd", "Contrast", "Brightness", "Equalize", "Posterize", "Invert"), 0.05),
    },
}

Chosen = tuple[str, float, int]  # an operation, its probability, and its level, 0 to 9


def _pairs(text: str) -> tuple[tuple[Chosen, Chosen], ...]:
    """The pairs of a table. A line has name, probability and level of the first operation, then of the second."""
    rows = [line.split() for line in text.strip().splitlines()]
    return tuple(((a, float(p), int(s)), (b, float(q), int(t))) for a, p, s, b, q, t in rows)


AUTO_POLICIES: Mapping[str, tuple[tuple[Chosen, Chosen], ...]] = {
    "imagenet": _pairs(
        """
        Posterize 0.4 8  Rotate 0.6 9
        Solarize 0.6 5  AutoContrast 0.6 0
        Equalize 0.8 0  Equalize 0.6 0
        Posterize 0.6 7  Posterize 0.6 6
        Equalize 0.4 0  Solarize 0.2 4
        Equalize 0.4 0  Rotate 0.8 8
        Solarize 0.6 3  Equalize 0.6 0
        Posterize 0.8 5  Equalize 1 0
        Rotate 0.2 3  Solarize 0.6 8
        Equalize 0.6 0  Posterize 0.4 6
        Rotate 0.8 8  Color 0.4 0
        Rotate 0.4 9  Equalize 0.6 0
        Equalize 0 0  Equalize 0.8 0
        Invert 0.6 0  Equalize 1 0
        Color 0.6 4  Contrast 1 8
        Rotate 0.8 8  Color 1 2
        Color 0.8 8  Solarize 0.8 7
        Sharpness 0.4 7  Invert 0.6 0
        ShearX 0.6 5  Equalize 1 0
        Color 0.4 0  Equalize 0.6 0
        Equalize 0.4 0  Solarize 0.2 4
        Solarize 0.6 5  AutoContrast 0.6 0
        Invert 0.6 0  Equalize 1 0
        Color 0.6 4  Contrast 1 8
        Equalize 0.8 0  Equalize 0.6 0
        """
    ),
    "cifar10": _pairs(
        """
        Invert 0.1 0  Contrast 0.2 6
        Rotate 0.7 2  TranslateX 0.3 9
        Sharpness 0.8 1  Sharpness 0.9 3
        ShearY 0.5 8  TranslateY 0.7 9
        AutoContrast 0.5 0  Equalize 0.9 0
        ShearY 0.2 7  Posterize 0.3 7
        Color 0.4 3  Brightness 0.6 7
        Sharpness 0.3 9  Brightness 0.7 9
        Equalize 0.6 0  Equalize 0.5 0
        Contrast 0.6 7  Sharpness 0.6 5
        Color 0.7 7  TranslateX 0.5 8
        Equalize 0.3 0  AutoContrast 0.4 0
        TranslateY 0.4 3  Sharpness 0.2 6
        Brightness 0.9 6  Color 0.2 8
        Solarize 0.5 2  Invert 0 0
        Equalize 0.2 0  AutoContrast 0.6 0
        Equalize 0.2 0  Equalize 0.6 0
        Color 0.9 9  Equalize 0.6 0
        AutoContrast 0.8 0  Solarize 0.2 8
        Brightness 0.1 3  Color 0.7 0
        Solarize 0.4 5  AutoContrast 0.9 0
        TranslateY 0.9 9  TranslateY 0.7 9
        AutoContrast 0.9 0  Solarize 0.8 3
        Equalize 0.8 0  Invert 0.1 0
        TranslateY 0.7 9  AutoContrast 0.9 0
        """
    ),
    "svhn": _pairs(
        """
        ShearX 0.9 4  Invert 0.2 0
        ShearY 0.9 8  Invert 0.7 0
        Equalize 0.6 0  Solarize 0.6 6
        Invert 0.9 0  Equalize 0.6 0
        Equalize 0.6 0  Rotate 0.9 3
        ShearX 0.9 4  AutoContrast 0.8 0
        ShearY 0.9 8  Invert 0.4 0
        ShearY 0.9 5  Solarize 0.2 6
        Invert 0.9 0  AutoContrast 0.8 0
        Equalize 0.6 0  Rotate 0.9 3
        ShearX 0.9 4  Solarize 0.3 3
        ShearY 0.8 8  Invert 0.7 0
        Equalize 0.9 0  TranslateY 0.6 6
        Invert 0.9 0  Equalize 0.6 0
        Contrast 0.3 3  Rotate 0.8 4
        Invert 0.8 0  TranslateY 0 2
        ShearY 0.7 6  Solarize 0.4 8
        Invert 0.6 0  Rotate 0.8 4
        ShearY 0.3 7  TranslateX 0.9 3
        ShearX 0.1 6  Invert 0.6 0
        Solarize 0.7 2  TranslateY 0.6 7
        ShearY 0.8 4  Invert 0.8 0
        ShearX 0.7 9  TranslateY 0.8 3
        ShearY 0.8 5  AutoContrast 0.7 0
        ShearX 0.7 2  Invert 0.1 0
        """
    ),
}
