"""Proves that every sample of an epoch came exactly once: what `loader.audit()` returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.base.errors import AuditError, StateError
from headrace.base.messages import Exhausted, Failed, Finished, Outcome, PackedIndices, PlacedKeys, Pull, Task
from headrace.insight.epoch_audit import EpochAudit, Part
from headrace.insight.tally import Tally

VERSION = 1


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

    def begin(
        self, epoch: int, part: Part, expected: Any = None, *, batched: bool = True, streams: bool = False
    ) -> EpochAccount:
        """Open the account of an epoch that begins, or goes on, now. One that is run again is counted anew."""
        if epoch not in self._goes_on or not part.first:
            nothing = Tally.of((), full=self.full)
            self._epochs[epoch] = EpochAudit(epoch, [], nothing, nothing, nothing, nothing)
        self._goes_on.discard(epoch)
        audit = self._epochs[epoch]
        if streams and audit.streams is None:
            audit.streams = {}
        return EpochAccount(audit, part, expected, batched=batched, full=self.full)

    def __repr__(self) -> str:
        return f"<Audit: {self.report()}>"


class EpochAccount:
    """Follows the batches of an epoch while it runs.

    Args:
        audit: where the result is noted.
        expected: what all ranks are to get (see `ExpectedKeys`); None if only the sampler knows.
        batched: whether a task has several keys.
    """

    def __init__(self, audit: EpochAudit, part: Part, expected: Any, *, batched: bool, full: bool) -> None:
        self._audit = audit
        self._part = len(audit.parts)
        audit.parts.append(part)
        self._expected = expected
        self._batched = batched
        self._full = full
        self._in_flight: dict[int, Tally] = {}
        self._workers: dict[int, int] = {}  # that are to make the batches of a stream

    def plan(self, task: Task) -> None:
        """A batch is asked for."""
        keys = task.keys.keys if type(task.keys) is PlacedKeys else task.keys
        if isinstance(keys, Pull):
            self._workers[task.number] = task.lane
            keys = ()
        elif isinstance(keys, PackedIndices):
            keys = keys.array
        elif not self._batched or not hasattr(keys, "__len__"):  # an iterator is left for those who need it
            keys = (keys,)
        self._in_flight[task.number] = self._tally(keys)

    def settle(self, outcome: Outcome) -> None:
        """What became of it is told to the loop."""
        audit, asked = self._audit, self._in_flight.pop(outcome.number, None)
        if isinstance(outcome, Failed):
            audit.raised += self._tally(()) if asked is None else asked  # of a sampler's error there are no keys
        elif asked is None:
            audit.strangers.append(outcome.number)
        elif audit.streams is not None:
            worker = str(self._workers.pop(outcome.number))
            audit.streams[worker] = audit.streams.get(worker, 0) + (not isinstance(outcome, Exhausted))
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


def _loaded(state: Mapping[str, Any]) -> list[EpochAudit]:
    try:
        if state["headrace_audit"] == VERSION:
            return [EpochAudit.load(epoch) for epoch in state["epochs"]]
    except (KeyError, TypeError, ValueError):
        pass
    raise StateError(f"This is no account of version {VERSION}: {state!r:.200}. Pass what audit.state_dict() gave.")
