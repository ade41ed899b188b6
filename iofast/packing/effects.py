"""Refuse options of `pack` that the other options leave without effect."""

from __future__ import annotations

from collections.abc import Mapping

from iofast.errors import OptionError
from iofast.kernel.contract import TranscodeRecipe


def require_effects(given: Mapping[str, object], recipe: TranscodeRecipe) -> None:
    """Raise `OptionError` for one of the `given` options that has no effect beside the others."""
    kept = recipe.format == "keep"
    # with "keep", these options still encode images
    encodes = kept and (recipe.mode, recipe.icc, recipe.background) != ("none", None, None)
    formats = f"format={recipe.format}" + (", which changes no pixel here" if kept else "")
    needs: tuple[tuple[str, str, bool, str], ...] = (  # options, expected beside them, whether so, found
        ("quality", "format=jpeg or webp", recipe.format in ("jpeg", "webp") or encodes, formats),
        ("subsampling", "format=jpeg", recipe.format == "jpeg" or encodes, formats),
        ("restart", "format=jpeg or keep", recipe.format == "jpeg" or kept, formats),
        ("check", "format=keep", kept, formats),
        (
            "icc background pad_color reducing_gap",
            "a format other than npy",
            recipe.format != "npy",
            "format=npy, which changes no value",
        ),
        ("filter only_shrink reducing_gap", "resize=", recipe.size is not None, "none"),
        ("pad_color mask_fill", "mode=pad", recipe.mode == "pad", f"mode={recipe.mode}"),
        ("box_format", "boxes=", given["boxes"] is not None, "none"),
        ("split_seed", "split=", given["split"] is not None, "none"),
        ("ray_cpus", "on=", given["on"] is not None, "none"),
    )
    for names, expected, met, found in needs:
        for name in () if met else names.split():
            value = given[name]
            if value is not None and value is not False:  # 0 is a value
                raise OptionError(
                    f"{name}={value} has no effect: expected {expected} beside it, found {found}; leave it out"
                )
