"""A rule of advice: a row of a table with its condition and its texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from iofast.monitor.advice.situation import Situation
from iofast.monitor.findings import Advice, Bound, Cause, Verdict


@dataclass(frozen=True)
class Match:
    """A rule applies: its figure, the predicted gain, and words for its texts."""

    value: float | None
    gain: float | None = None
    words: Mapping[str, object] = field(default_factory=dict)
    trigger: str = ""  # the rule's trigger unless given


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Advice `name` on verdicts in `on`, if `match` returns a `Match`.

    `text`, `change` and `risk` are format strings with `value`, the match's words, and `now`, the `Situation`.
    """

    name: str
    on: frozenset[Bound | Cause]  # Bound.INPUT means every cause
    match: Callable[[Situation], Match | None]
    text: str
    change: str
    trigger: str
    risk: str = ""
    changes_accuracy: bool = False

    def advice(self, now: Situation) -> Advice | None:
        """Advice for this situation; None if the rule does not apply."""
        if not self._concerns(now.verdict) or (match := self.match(now)) is None:
            return None
        words = {**match.words, "now": now, "value": match.value}
        return Advice(
            name=self.name,
            text=self.text.format_map(words),
            # lines are the rule's own: a path of the watched process adds none
            change="\n".join(line.format_map(words).replace("\n", "\\n") for line in self.change.split("\n")),
            trigger=match.trigger or self.trigger,
            value=match.value,
            gain=match.gain,
            changes_accuracy=self.changes_accuracy,
            risk=self.risk.format_map(words),
        )

    def _concerns(self, verdict: Verdict) -> bool:
        return verdict.bound in self.on or (verdict.bound is Bound.INPUT and verdict.cause in self.on)


EVERY = frozenset({*Bound})
INPUT = frozenset({Bound.INPUT})
BUSY = frozenset({Bound.COMPUTE, Bound.MEMORY})


def on(*verdicts: Bound | Cause) -> frozenset[Bound | Cause]:
    """The verdicts and causes that a rule applies to."""
    return frozenset(verdicts)
