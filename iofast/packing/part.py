"""One part of a packing run: its number, and which images it has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from iofast.containers.writer import Section
from iofast.errors import OptionError

MAX_PARTS = 1_000_000
SLURM = "slurm"
_SHOWN = 10  # missing parts in a message

_PART = re.compile(r"(\d{1,7})/(\d{1,7})", re.ASCII)


class PackPart(NamedTuple):
    """Part `number`, from 1, of `total`."""

    number: int
    total: int

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str]) -> PackPart:
        """The part that `text` names: "3/8", or "slurm" for the task of a SLURM array. Raises `OptionError`."""
        if text == SLURM:
            return cls._of_slurm(environment)
        found = _PART.fullmatch(text)
        part = cls(int(found[1]), int(found[2])) if found else cls(0, 0)
        if not 1 <= part.number <= part.total <= MAX_PARTS:
            raise OptionError(f"part must be i/n with i from 1 to n, as in 3/8, or slurm, found {text!r:.80}")
        return part

    @classmethod
    def _of_slurm(cls, environment: Mapping[str, str]) -> PackPart:
        """The task of a SLURM array: its ids may begin anywhere and have gaps of a fixed step."""
        try:
            task, least, most = (int(environment[f"SLURM_ARRAY_TASK_{name}"]) for name in ("ID", "MIN", "MAX"))
            step = int(environment.get("SLURM_ARRAY_TASK_STEP", "1"))
            count = int(environment["SLURM_ARRAY_TASK_COUNT"])
        except (KeyError, ValueError) as error:
            raise OptionError(
                f"part=slurm needs the task of a SLURM array (sbatch --array=1-8): {error!s:.80}"
            ) from None
        part = cls((task - least) // step + 1, count)
        if count != (most - least) // step + 1 or (task - least) % step or not 1 <= part.number <= count:
            raise OptionError(
                f"part=slurm needs an array without gaps, found {count} tasks from {least} to {most} in steps of {step}"
            )
        return part

    def of(self, sections: Sequence[Section]) -> Sequence[Section]:
        """Its sections: an equal run of all."""
        first, last = (len(sections) * number // self.total for number in (self.number - 1, self.number))
        return sections[first:last]


def parts_of(sections: Sequence[Section], missing: Sequence[Section], count: int) -> tuple[int, ...]:
    """The numbers of the parts, of `count`, that have one of the missing sections."""
    lost = {each.number for each in missing}
    parts = (PackPart(number, count) for number in range(1, count + 1))
    return tuple(part.number for part in parts if any(each.number in lost for each in part.of(sections)))


def missing_words(missing: Sequence[int], count: int) -> str:
    """Say which parts are missing, as in: parts 2, 5 and 7 of 8 are missing."""
    shown = [f"{number:,}" for number in missing[:_SHOWN]]
    if len(missing) > _SHOWN:
        shown.append(f"{len(missing) - _SHOWN:,} more")
    listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    return f"part{'s' if len(missing) > 1 else ''} {listed} of {count:,} {'are' if len(missing) > 1 else 'is'} missing"
