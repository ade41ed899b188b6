"""The options of packing: a frozen class that checks itself, and the same names as keywords."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from iofast.arguments import MAX_SEED, check_integer
from iofast.containers.manifest import MAX_COUNT
from iofast.errors import OptionError
from iofast.foreign.options import ForeignOptions
from iofast.kernel.contract import TranscodeRecipe
from iofast.option import check_effect, described, parse_size
from iofast.packing.option_fields import GROUPS, OrderFields, PixelFields, RunFields, SampleFields
from iofast.packing.part import SLURM, PackPart
from iofast.packing.pool import MAX_WORKERS
from iofast.packing.sample import SampleRecipe
from iofast.packing.splits import parse_shares, written
from iofast.source.attached import parse_sides
from iofast.source.options import SourceOptions, names_of


@dataclass(frozen=True, kw_only=True)
class PackOptions(RunFields, OrderFields, SourceOptions, SampleFields, PixelFields):
    """The options of `pack`. None means the default. Raises `OptionError` for values and combinations without meaning.

    See `kernel.TranscodeRecipe` for options of pixels, `SampleRecipe` for fields beside the image. Sizes are bytes or a
    text ("500MB", "1GiB"), shares of the images a mapping or a text, names a list or one text with commas.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        _require_effects(given, self.sample_recipe().image)  # the recipe checks all options of pixels
        self.allowed_errors(1)
        for name, (least, most) in _LIMITS.items():
            if given[name] is not None:
                check_integer(name, given[name], least, most)
        self.shares()
        if self.shard_size is not None:
            parse_size(self.shard_size)
        if self.shard_size is not None and self.shard_records is not None:
            raise OptionError("shard_size and shard_records both set the size of a shard: give one of them")
        if self.part is not None and self.part != SLURM:
            PackPart.parse(self.part, {})
        if self.part is not None and self.finish:
            raise OptionError("part packs one part, finish=True joins all: give one of them, or finish_when_complete")
        if self.dry_run and (self.part is not None or self.finish):
            raise OptionError("dry_run=True estimates the whole run: leave out part and finish")
        if self.on is not None:
            self._check_cluster()
        parse_sides(self.fields)
        ForeignOptions.of(self.foreign)
        _checked_notes(self.notes)

    def _check_cluster(self) -> None:
        if self.on != RAY and not (isinstance(self.on, str) and self.on.startswith(f"{RAY}://")):
            raise OptionError(f"on must be ray or ray://host:port, found {self.on!r:.80}")
        if self.part is not None or self.finish or self.dry_run:
            raise OptionError(f"on={self.on} packs and joins all parts: leave out part, finish and dry_run")
        if self.workers is not None:
            raise OptionError(f"workers={self.workers} has no effect with on={self.on}: give ray_cpus= instead")

    def _given(self, names: Iterable[str]) -> dict[str, Any]:
        """Those of these options that were given."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def recipe(self) -> TranscodeRecipe:
        """The kernel's recipe for each image."""
        usual = {"format": "keep"} if self.resize is None else {"format": "jpeg", "mode": "short"}
        chosen = usual | self._given(each.name for each in fields(PixelFields))
        restart = chosen.get("restart", "auto" if chosen["format"] == "jpeg" else None)  # None keeps kept JPEGs
        if isinstance(restart, str) and restart.removeprefix("-").isdecimal():
            restart = int(restart)
        chosen |= {
            "size": chosen.pop("resize", None),
            "restart": 0 if restart == "none" else restart,
            "max_memory": parse_size(self.max_memory, "max_memory"),
            "check": None if self.check == "decode" else self.check,
            "truncated": None if self.truncated == "strict" else self.truncated,
        }
        return TranscodeRecipe(**chosen)

    def sample_recipe(self) -> SampleRecipe:
        """The recipe for each sample."""
        return SampleRecipe(image=self.recipe(), upright=self.upright_annotations, **self._given(_OF_SAMPLE))

    def allowed_errors(self, images: int) -> int:
        """The number of `images` that may fail: `max_errors`, a share rounded down. Raises `OptionError`."""
        if self.max_errors is None:
            return min(max(images // 100, _FEW), images // 2)
        text = str(self.max_errors).strip()
        try:
            if text.endswith("%"):
                share = float(text[:-1])
                if not 0 <= share <= 100:
                    raise ValueError
                return int(images * share / 100 + 1e-9)
            if (count := int(text)) < 0:
                raise ValueError
        except ValueError:
            raise OptionError(
                f"max_errors must be a number of images or a share such as '1%', found {self.max_errors!r}"
            ) from None
        return count

    def shares(self) -> dict[str, float] | None:
        """The shares of `split`, None without that option."""
        return None if self.split is None else parse_shares(self.split)

    def shaping(self) -> dict[str, object]:
        """The options that decide the contents of the container: its recipe, equal in a resumed run."""
        sample = self.sample_recipe()
        image = {name: value for name, value in asdict(sample.image).items() if value is not None}
        del image["max_memory"]  # of the run alone: a resumed run may have more
        rest = {name: getattr(sample, name) for name in _OF_SAMPLE if getattr(sample, name) != _SAMPLE_DEFAULTS[name]}
        rest["upright_annotations"] = sample.upright
        rest |= {name: list(names_of(getattr(self, name))) for name in ("fields", "mask_column", "file_column")}
        rest |= {"label_base": self.label_base}
        given = {name: value for name, value in rest.items() if value or name in _OF_SAMPLE}
        shares = self.shares()
        if shares is not None:
            given |= {"split": written(shares), "split_seed": self.split_seed or 0}
        return {**_checked_notes(self.notes), **image, **given}


def as_option(name: str, value: object) -> str:
    """A member of a recipe or plan as text, like the option that sets it."""
    option = "resize" if name == "size" else name
    return f"{option}={value}" if option in _NAMES else f"{name} {value}"


def _checked_notes(notes: Mapping[str, object] | None) -> dict[str, object]:
    """Notes after a round trip through JSON. Raises `OptionError` for other values, and for names of pack's own."""
    try:
        checked: dict[str, object] = json.loads(json.dumps(dict(notes or {}), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"notes must be a mapping that JSON can represent: {error}") from None
    if own := sorted(set(checked) & OWN):
        raise OptionError(f"notes must not have {own[0]!r}, which is a member of every recipe")
    return checked


def _require_effects(given: Mapping[str, object], recipe: TranscodeRecipe) -> None:
    """Raise `OptionError` for one of the `given` options that has no effect beside the others."""
    kept = recipe.format == "keep"
    # with "keep", these options still encode images
    encodes = kept and (recipe.mode, recipe.icc, recipe.background) != ("none", None, None)
    formats = f"format={recipe.format}" + (", which changes no pixel here" if kept else "")
    npy = "icc background pad_color reducing_gap"
    needs: tuple[tuple[str, str, bool, str], ...] = (  # options, expected beside them, whether so, found
        ("quality", "format=jpeg or webp", recipe.format in ("jpeg", "webp") or encodes, formats),
        ("subsampling", "format=jpeg", recipe.format == "jpeg" or encodes, formats),
        ("restart", "format=jpeg or keep", recipe.format == "jpeg" or kept, formats),
        ("check", "format=keep", kept, formats),
        (npy, "a format other than npy", recipe.format != "npy", "format=npy, which changes no value"),
        ("filter only_shrink reducing_gap", "resize=", recipe.size is not None, "none"),
        ("pad_color mask_fill", "mode=pad", recipe.mode == "pad", f"mode={recipe.mode}"),
        ("box_format", "boxes=", given["boxes"] is not None, "none"),
        ("split_seed", "split=", given["split"] is not None, "none"),
        ("ray_cpus", "on=", given["on"] is not None, "none"),
        ("finish_when_complete", "part=", given["part"] is not None, "none"),
    )
    for names, expected, met, found in needs:
        for name in () if met else names.split():
            value = given[name]
            if value is not None and value is not False:  # 0 is a value
                check_effect(f"{name}={value}", False, f"{expected} beside it", found)


PackOptions.__doc__ = f"{PackOptions.__doc__}\n{described(*GROUPS.values())}\n    "
_OF_SAMPLE = ("min_size", "max_aspect", "boxes", "box_format", "keypoints", "mask_fill")
_SAMPLE_DEFAULTS = {field.name: field.default for field in fields(SampleRecipe)}
RAY = "ray"  # a value of `on`; with "://host:port" it names a cluster
_LIMITS = {  # whole numbers
    "max_pixels": (1, 1 << 62),
    "shuffle": (0, MAX_SEED),
    "split_seed": (0, MAX_SEED),
    "workers": (1, MAX_WORKERS),
    "ray_cpus": (1, MAX_WORKERS),
    "shard_records": (1, MAX_COUNT),
    "label_base": (0, 1),
}
_FEW = 10  # images that may fail by default, even of a small set
_NAMES = {field.name for field in fields(PackOptions)}
SOFTWARE = ("iofast", "kernel", "pillow", "libjpeg-turbo")  # members of a recipe: versions of the software
# members of a recipe that are not the caller's notes
OWN = {*SOFTWARE, *(field.name for kind in (PackOptions, TranscodeRecipe) for field in fields(kind))}
