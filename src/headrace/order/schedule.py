"""What a loader gives, epoch by epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.base.errors import StateError
from headrace.base.plan import Plan


class Schedule(ABC):
    """Makes the plans of a loader's epochs, from their beginning or from any position on."""

    kind: str
    """What it gives the batches of, in words: states of other kinds are refused."""

    rank: tuple[int, int] = (0, 1)
    """Which rank this is, and of how many."""

    shares_seed = False
    """Whether all ranks must seed their workers alike, though no seed was given."""

    @abstractmethod
    def begin(self, epoch: int, start: Mapping[str, Any], *, batches: int = 0, workers: int = 0) -> Plan:
        """The plan of an epoch, from where `start` was saved, after so many batches; empty for the beginning."""

    @abstractmethod
    def edge(self) -> dict[str, Any]:
        """The position between two epochs: what a plan goes on from, and what `check` compares."""

    @abstractmethod
    def parse(self, course: Any) -> Any:
        """A position, as `Plan.position`, `edge` or `seek` may have given it.

        Raises:
            StateError: none of them can have; says where.
        """

    @abstractmethod
    def check(self, state: Mapping[str, Any], *, is_edge: bool) -> None:
        """See that a plan can go on from a state, whose position is as `parse` returns it.

        Args:
            is_edge: whether it is the beginning of an epoch.

        Raises:
            StateError: it was saved by another schedule, of other data, or its parts do not fit together.
        """

    @abstractmethod
    def seek(self, epoch: int, batch: int) -> dict[str, Any]:
        """The position before batch number `batch`. Its `discard` says how many must be read to get there."""

    @abstractmethod
    def n_batches(self, epoch: int) -> int:
        """How many batches an epoch has.

        Raises:
            TypeError: that is not known.
        """

    def chosen_epoch(self) -> int | None:
        """The epoch that somebody has told a sampler since the latest epoch began; None if nobody has."""
        return None

    def restore(self, start: Mapping[str, Any]) -> None:  # noqa: B027 (mostly nothing lasts longer)
        """Put what lasts longer than an epoch to where it was at the beginning of one."""

    def commit(self, course: Mapping[str, Any]) -> None:  # noqa: B027 (only live sources acknowledge anything)
        """Acknowledge what a position covers: it has been saved for good."""

    def close(self) -> None:  # noqa: B027 (mostly nothing lasts longer than an epoch)
        """Close what lasts longer than an epoch."""

    def upgrade(self, state: Any) -> Any:
        """A state as it is saved now, of one that was saved before the format changed."""
        return state

    def gather(self, states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """One state, of those of all ranks.

        Raises:
            StateError: they do not fit together.
        """
        if len(states) != 1:
            raise StateError("Only streams, and sequences of unknown lengths, need the states of all ranks. Pass one.")
        return states[0]

    def origins(self, epoch: int, start: Mapping[str, Any], ahead: int, plan: Plan | None, *, read: bool) -> Any:
        """Where the samples of a batch come from, as a list of `SampleOrigin`.

        Args:
            start: a position in the epoch; empty for its beginning.
            ahead: how many batches come between that and the batch.
            plan: of the epoch, if it is the latest one.
            read: whether data may be read, to count rows.

        Raises:
            ValueError: that is not known; says why.
            IndexError: the epoch has no such batch.
        """
        raise ValueError(f"Where batches come from is not known of {self.kind}.")

    def leads_to(self, batches: int, start: Mapping[str, Any]) -> bool:
        """Whether the first batches of an epoch, cut as they are now, lead to a position."""
        return True

    def expected(self, plan: Plan) -> Any:
        """What all ranks are to get in an epoch, for an audit; None if that is not known."""
        return None

    def reader(self, config: Any) -> Any:
        """What workers open and read from, where that is not a dataset by key or a user's iterable."""
        return None
