"""What became of the samples of one epoch, and whether that is what should have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.insight.tally import Tally
from headrace.insight.words import as_batches

_MOST_NAMED = 10  # keys in a message


class Part(NamedTuple):
    """What one rank ran of an epoch, without a stop.

    Attributes:
        first: where it began, in the order of all ranks; later parts have larger numbers.
        is_over: whether it ran to the end.
    """

    first: int = 0
    rank: int = 0
    world: int = 1
    is_over: bool = False


@dataclass
class EpochAudit:
    """The account of an epoch, of one rank or of several, of a part or of the whole.

    Attributes:
        delivered: the samples that were handed to the loop.
        left_out: those that were bad, under `on_error="skip"`.
        raised: those of batches whose error was raised in the loop.
        lost: those that were asked for, and of which nothing was heard until the end.
        strangers: the numbers of batches that came again, or though nobody had asked for them.
        whole: the samples of all ranks from the beginning to the end; None if only the sampler knows.
        rest: the same, from where the latest part began.
        dropped: how many samples no rank was to get, and `doubled` how many were to come a second time.
        is_guess: whether `whole` holds only if all parts ran on as many ranks.
        disagrees: whether ranks expected different samples.
        streams: the batches that came of each worker's stream, if the dataset is one.
    """

    epoch: int
    parts: list[Part] = field(default_factory=list)
    delivered: Tally = field(default_factory=Tally)
    left_out: Tally = field(default_factory=Tally)
    raised: Tally = field(default_factory=Tally)
    lost: Tally = field(default_factory=Tally)
    strangers: list[int] = field(default_factory=list)
    whole: Tally | None = None
    rest: Tally | None = None
    dropped: int = 0
    doubled: int = 0
    is_guess: bool = False
    disagrees: bool = False
    streams: dict[str, int] | None = None

    @property
    def _latest(self) -> list[Part]:
        latest = max((part.first for part in self.parts), default=0)
        return [part for part in self.parts if part.first == latest]

    @property
    def is_over(self) -> bool:
        return bool(self.parts) and all(part.is_over for part in self._latest)

    @property
    def has_all_ranks(self) -> bool:
        groups: dict[tuple[int, int], set[int]] = {}
        for part in self.parts:
            groups.setdefault((part.first, part.world), set()).add(part.rank)
        return all(len(ranks) == world for (_, world), ranks in groups.items())

    @property
    def expected(self) -> Tally | None:
        """What should have come, as far as that can be told from the parts that are known."""
        if not self.is_over or not self.has_all_ranks or self.disagrees:
            return None
        firsts = {part.first for part in self.parts}
        if self.is_guess and len({part.world for part in self.parts}) > 1:
            return None
        if 0 in firsts:
            return self.whole
        return self.rest if len(firsts) == 1 else None

    @property
    def settled(self) -> Tally:
        """Everything of which the loop has heard."""
        return self.delivered + self.left_out + self.raised

    @property
    def is_proven(self) -> bool:
        expected = self.expected
        return expected is not None and self.settled.has_same_keys(expected) and not self.problems()

    def problems(self) -> list[str]:
        """What is wrong, in words; of an epoch that is not over, only what is certain already."""
        found = []
        if self.strangers:
            found.append(f"batches came twice, or without being asked for: {_named(self.strangers)}")
        if self.disagrees:
            found.append("ranks expect different samples: are seed, data and arguments the same on all of them?")
        if self.lost.count:
            found.append(f"asked for, but never came: {_described(self.lost)}")
        expected = self.expected
        if expected is not None:
            found += _difference(self.settled + self.lost, expected)
        return found

    def describe(self) -> str:
        """A sentence or two."""
        problems = self.problems()
        if problems:
            return f"epoch {self.epoch}: WRONG: {self._numbers()}. " + "; ".join(problems) + "."
        return f"epoch {self.epoch}: {self._numbers()}{self._verdict()}."

    def _numbers(self) -> str:
        if self.streams is not None:
            counts = ", ".join(f"worker {worker} {count:,}" for worker, count in sorted(self.streams.items()))
            each = f" ({counts})" if len(self.streams) > 1 else ""
            return f"{as_batches(sum(self.streams.values()))} of a stream delivered{each}"
        expected = self.expected
        wanted = f"{expected.count:,} samples expected, " if expected is not None else ""
        text = f"{wanted}{self.delivered.count:,} {'' if wanted else 'samples '}delivered"
        for tally, fate in ((self.left_out, "left out as bad"), (self.raised, "in batches that raised")):
            text += f", {tally.count:,} {fate}" if tally.count else ""
        return text

    def _verdict(self) -> str:
        if not self.is_over:
            return " so far; it is not over"
        if self.streams is not None:
            return "; which samples these are, only the dataset knows"
        text = ", each exactly once"
        if self.expected is None:
            return f"{text}, as asked for by {self._ranks()}; {self._what_is_missing()}"
        if 0 not in {part.first for part in self.parts}:
            text += f", from position {min(part.first for part in self.parts):,} on"
        text += f" over {self._ranks()}" if self._latest[0].world > 1 else ""
        text += f" ({self.dropped:,} dropped to make batches full or ranks even)" if self.dropped else ""
        return text + (f" ({self.doubled:,} of them came again, to make ranks even)" if self.doubled else "")

    def _ranks(self) -> str:
        ranks, world = sorted({part.rank for part in self._latest}), self._latest[0].world
        if len(ranks) == world:
            return f"{world:,} ranks" if world > 1 else "the sampler"
        return f"rank {_named(ranks)} of {world:,}"

    def _what_is_missing(self) -> str:
        if not self.has_all_ranks:
            return "merge the audits of all ranks, to compare with the whole epoch"
        if len({part.first for part in self.parts}) > 1 or self.parts[0].first:
            return "merge the audits of all parts of the epoch, to compare with the whole"
        return "what that should be, only the sampler knows: pass audit(expect=...) to compare"

    def add(self, other: EpochAudit) -> None:
        """Take in the account of another rank, or of another part, of the same epoch."""
        mine, theirs = self._latest_first, other._latest_first
        if mine == theirs and self.whole is not None and other.whole is not None:
            self.disagrees |= not self.whole.has_same_keys(other.whole)
        self.disagrees |= other.disagrees
        if theirs > mine or (theirs == mine and self.whole is None):
            self.whole, self.rest = other.whole, other.rest
            self.dropped, self.doubled, self.is_guess = other.dropped, other.doubled, other.is_guess
        self.parts = self.parts + other.parts
        for name in ("delivered", "left_out", "raised", "lost"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.strangers = self.strangers + other.strangers
        if other.streams is not None:
            streams = dict(self.streams or {})
            for worker, count in other.streams.items():
                streams[worker] = streams.get(worker, 0) + count
            self.streams = streams

    @property
    def _latest_first(self) -> int:
        return self._latest[0].first if self.parts else -1

    def save(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        saved = dict(self.__dict__)
        for name, value in saved.items():
            if isinstance(value, Tally):
                saved[name] = value.save()
        saved["parts"] = [list(part) for part in self.parts]
        saved["strangers"] = list(self.strangers)
        saved["streams"] = None if self.streams is None else dict(self.streams)
        return saved

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> EpochAudit:
        """What `save` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        values = dict(saved)
        for name in ("delivered", "left_out", "raised", "lost", "whole", "rest"):
            values[name] = None if values[name] is None else Tally.load(values[name])
        values["parts"] = [Part(*part) for part in values["parts"]]
        return cls(**values)


def _difference(came: Tally, expected: Tally) -> list[str]:
    if came.has_same_keys(expected):
        return []
    difference = came - expected
    if difference.ids is not None:
        missing = sorted((key for key, count in difference.ids.items() if count < 0), key=str)
        surplus = sorted((key for key, count in difference.ids.items() if count > 0), key=str)
        named = (("missing", missing), ("too often", surplus))
        return [f"{len(keys):,} {fate}: {_named(keys)}" for fate, keys in named if keys]
    if difference.count == 0:
        text = "some samples are missing, and others came too often instead"
    else:
        text = f"{abs(difference.count):,} samples {'too many' if difference.count > 0 else 'are missing'}"
    return [f"{text} (audit(full=True) names them)"]


def _described(tally: Tally) -> str:
    if tally.ids is None:
        return f"{tally.count:,} samples (audit(full=True) names them)"
    return f"{tally.count:,} samples, {_named(sorted(tally.ids, key=str))}"


def _named(keys: list[Any]) -> str:
    more = len(keys) - _MOST_NAMED
    return ", ".join(map(repr, keys[:_MOST_NAMED])) + (f" and {more:,} more" if more > 0 else "")
