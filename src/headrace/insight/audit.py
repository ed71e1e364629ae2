"""Proves that every sample of an epoch came exactly once: what `loader.audit()` returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.base.errors import AuditError, StateError
from headrace.base.html import paragraph, table, title
from headrace.base.messages import Exhausted, Failed, Finished, Outcome, Task
from headrace.insight.tally import Tally

VERSION = 1
_MOST_NAMED = 10  # keys in a message


class Audit:
    """The account of the samples that a loader was to give, and of those that it gave.

    Guarantees: constant memory per epoch: keys are not kept, but counted and hashed, in two sums of 64 bits that do not
    depend on their order. An epoch is *proven* if all that was delivered, left out as bad (`on_error="skip"`) or raised
    in the loop is just what its sampler and `even` ask for, over all ranks. That is known for all of headrace's and
    torch's samplers with `seed`, and for those without that draw each key once; for others, pass `expect`. Where it is
    not known, it is still shown that each batch that was asked for came once. Of a stream of your own only batches are
    counted, since nobody else knows what its samples are.

    Args:
        full: keep the keys too, to name those that are missing.
        expect: the keys that all ranks together are to get in each epoch; if None, what the sampler says.
    """

    def __init__(self, *, full: bool = False, expect: Iterable[Any] | None = None) -> None:
        self.full = full
        self.expect = expect
        self._epochs: dict[int, EpochAudit] = {}
        self._goes_on: set[int] = set()  # epochs whose account was loaded

    @property
    def proven(self) -> list[int]:
        """The epochs whose samples came exactly once over all ranks, from where the known parts begin to the end."""
        return [epoch.epoch for epoch in self._epochs.values() if epoch.is_proven]

    def report(self) -> str:
        """What is known of every epoch, one line each.

        Examples:
            >>> from headrace import DataLoader
            >>> loader = DataLoader(range(10), batch_size=4, shuffle=True, seed=0)
            >>> audit = loader.audit()
            >>> batches = list(loader)
            >>> audit.report()
            'epoch 0: 10 samples expected, 10 delivered, each exactly once.'
        """
        lines = [epoch.describe() for epoch in self._epochs.values()]
        return "\n".join(lines) or "No epoch has begun since the audit was switched on."

    def check(self) -> None:
        """See that nothing is missing, and nothing came twice; an epoch that is not over lacks nothing yet.

        Raises:
            AuditError: something is wrong; says what, and with `full=True` which samples. Or there is nothing to check.
        """
        if not self._epochs:
            raise AuditError(self.report())
        wrong = [epoch.describe() for epoch in self._epochs.values() if epoch.problems()]
        if wrong:
            raise AuditError("\n".join(wrong))

    def state_dict(self) -> dict[str, Any]:
        """The account as plain values, for JSON: to gather from all ranks, or to save with the loader's state."""
        return {"headrace_audit": VERSION, "full": self.full, "epochs": [e.save() for e in self._epochs.values()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with an account that was saved together with the state that is loaded into the loader.

        Raises:
            StateError: this is no account, or it kept no keys, though this one is to.
        """
        loaded = _loaded(state)
        if self.full and not state["full"]:
            raise StateError("The account was kept without full=True, so its keys are not known. Pass full=False.")
        self._epochs = {epoch.epoch: epoch for epoch in loaded}
        self._goes_on = set(self._epochs)

    @classmethod
    def merged(cls, audits: Iterable[Audit | Mapping[str, Any]]) -> Audit:
        """The account of all ranks, or of all parts of an epoch: of audits, or of what their `state_dict` gave.

        Raises:
            StateError: one of them is no account.
        """
        states = [audit.state_dict() if isinstance(audit, Audit) else audit for audit in audits]
        epochs: dict[int, EpochAudit] = {}
        for epoch in (epoch for state in states for epoch in _loaded(state)):
            if epoch.epoch in epochs:
                epochs[epoch.epoch].add(epoch)
            else:
                epochs[epoch.epoch] = epoch
        merged = cls(full=all(state["full"] for state in states))
        merged._epochs = dict(sorted(epochs.items()))
        return merged

    def merge(self, others: Iterable[Audit | Mapping[str, Any]]) -> Audit:
        """A new audit of this one and others; see `merged`."""
        return Audit.merged([self, *others])

    def begin(self, epoch: int, part: Part, expected: Any = None, *, streams: bool = False) -> EpochAccount:
        """Open the account of an epoch that begins, or goes on, now. One that is run again is counted anew."""
        if epoch not in self._goes_on or not part.first:
            nothing = Tally.of((), full=self.full)
            self._epochs[epoch] = EpochAudit(epoch, [], nothing, nothing, nothing, nothing, surplus=nothing)
        self._goes_on.discard(epoch)
        audit = self._epochs[epoch]
        if streams and audit.streams is None:
            audit.streams = {}
        return EpochAccount(audit, part, expected, full=self.full)

    def __repr__(self) -> str:
        return f"<Audit: {self.report()}>"

    def _repr_html_(self) -> str:
        if not self._epochs:
            return paragraph(self.report())
        rows = [(str(one.epoch), _mark(one), one.describe().partition(": ")[2]) for one in self._epochs.values()]
        return title("Audit") + table([("epoch", "", "samples"), *rows])


def _mark(epoch: EpochAudit) -> str:
    return "✗" if epoch.problems() else "✓ proven" if epoch.is_proven else "…"


class EpochAccount:
    """Follows the batches of an epoch while it runs.

    Args:
        audit: where the result is noted.
        expected: what all ranks are to get (see `ExpectedKeys`); None if only the sampler knows.
    """

    def __init__(self, audit: EpochAudit, part: Part, expected: Any, *, full: bool) -> None:
        self._audit = audit
        self._part = len(audit.parts)
        audit.parts.append(part)
        self._expected = expected
        self._full = full
        self._in_flight: dict[int, Tally] = {}
        self.is_surplus = False
        """Whether what comes now is left out."""

    @property
    def names_samples(self) -> bool:
        """Whether samples are known; of a user's iterable, only batches are counted."""
        return self._audit.streams is None

    def ask(self, task: Task, keys: Any) -> None:
        """A batch of these is asked for."""
        self._in_flight[task.number] = self._tally(keys)

    def give(self, keys: Any, *, is_lost: bool) -> None:
        """A batch of these is handed to the loop, or left out, because it raised."""
        if is_lost:
            self._audit.left_out += self._tally(keys)
        elif self.is_surplus:
            self._audit.surplus += self._tally(keys)
        else:
            self._audit.delivered += self._tally(keys)

    def settle(self, task: Task, outcome: Outcome) -> None:
        """What became of a batch is told to the loop."""
        audit, asked = self._audit, self._in_flight.pop(task.number, None)
        if isinstance(outcome, Failed):
            audit.raised += self._tally(()) if asked is None else asked  # of a sampler's error there are no keys
        elif asked is None:
            audit.strangers.append(task.number)
        elif audit.streams is not None:
            worker = str(task.worker)
            counts = not (isinstance(outcome, Exhausted) or self.is_surplus)
            audit.streams[worker] = audit.streams.get(worker, 0) + counts
        elif isinstance(outcome, Finished) and self.is_surplus:
            audit.surplus += asked
        elif isinstance(outcome, Finished):
            audit.delivered += asked
            if outcome.bad:
                bad = self._tally([sample.key for sample in outcome.bad])
                audit.delivered -= bad
                audit.left_out += bad
        else:
            audit.left_out += asked

    def end(self) -> None:
        """The loop has come to the end. What it should have got is computed now, a few thousand keys at a time."""
        audit = self._audit
        audit.parts[self._part] = audit.parts[self._part]._replace(is_over=True)
        audit.lost += Tally.sum(self._in_flight.values(), full=self._full)
        if self._expected is None:
            return
        rest = self._expected.rest()
        audit.rest = None if rest is None else self._sum(rest)
        begins = audit.parts[self._part].first == 0
        audit.whole = audit.rest if begins else self._sum(self._expected.whole())
        audit.dropped, audit.doubled = self._expected.n_dropped(), self._expected.n_doubled()
        audit.is_guess = self._expected.is_guess

    def _sum(self, chunks: Iterable[Any]) -> Tally:
        return Tally.sum(map(self._tally, chunks), full=self._full)

    def _tally(self, keys: Any) -> Tally:
        return Tally.of(keys, full=self._full)


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
        surplus: those of batches that were left out to keep ranks in step.
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
    surplus: Tally = field(default_factory=Tally)

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
        return self.delivered + self.left_out + self.raised + self.surplus

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
            n = sum(self.streams.values())
            each = f" ({counts})" if len(self.streams) > 1 else ""
            return f"{n:,} {'batch' if n == 1 else 'batches'} of a stream delivered{each}"
        expected = self.expected
        wanted = f"{expected.count:,} samples expected, " if expected is not None else ""
        text = f"{wanted}{self.delivered.count:,} {'' if wanted else 'samples '}delivered"
        for tally, fate in (
            (self.left_out, "left out as bad"),
            (self.raised, "in batches that raised"),
            (self.surplus, "left out since other ranks had no more"),
        ):
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
        for name in ("delivered", "left_out", "raised", "lost", "surplus"):
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
        values = {"surplus": Tally().save(), **saved}
        for name in ("delivered", "left_out", "raised", "lost", "whole", "rest", "surplus"):
            values[name] = None if values[name] is None else Tally.load(values[name])
        values["parts"] = [Part(*part) for part in values["parts"]]
        return cls(**values)


def _loaded(state: Mapping[str, Any]) -> list[EpochAudit]:
    try:
        if state["headrace_audit"] == VERSION:
            return [EpochAudit.load(epoch) for epoch in state["epochs"]]
    except (KeyError, TypeError, ValueError):
        pass
    raise StateError(f"This is no account of version {VERSION}: {state!r:.200}. Pass what audit.state_dict() gave.")


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
