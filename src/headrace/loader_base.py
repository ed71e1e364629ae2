"""What every loader has: epochs, states, an end, and what it says of itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

from headrace.arguments import checked_count
from headrace.base.compiling import keep_out_compiler
from headrace.base.messages import BadSample
from headrace.base.typevars import Batch_co
from headrace.config import LoaderConfig, Reports
from headrace.deliver.iterator import LoaderIterator, OpenIterators
from headrace.deliver.quarantine import Quarantine
from headrace.epochs import Epochs, Orders
from headrace.insight.loader_reports import LoaderReports
from headrace.order.shard import find_rank

if TYPE_CHECKING:
    from typing_extensions import Self

    from headrace.base.provenance import Provenance
    from headrace.insight.audit import Audit


class Loader(LoaderReports, Generic[Batch_co]):
    """Gives the batches of a schedule, epoch by epoch."""

    def _start(self, orders: Orders, quarantine: Any) -> None:
        """All arguments are known."""
        keep_out_compiler()
        file = None if quarantine is None else Quarantine(quarantine)
        self._epochs = Epochs(orders, Reports(self._recorder, quarantine=file))
        self._iterators = OpenIterators()

    @abstractmethod
    def _config(self) -> LoaderConfig:
        """What the loader is asked for now."""

    def __iter__(self) -> LoaderIterator[Batch_co]:
        iterator = self._epochs.open(self._config())
        self._iterators.add(iterator)
        return iterator

    def _rank(self) -> tuple[int, int]:
        own = self._epochs.schedule.rank
        return own if own[1] > 1 else find_rank()

    @property
    def errors(self) -> list[BadSample]:
        """The samples that were left out, over all epochs."""
        return self._epochs.reports.errors

    def close(self) -> None:
        """End all workers, and the epochs that are not over yet. The next epoch starts new ones."""
        self._epochs.stop_running()
        self._iterators.close()
        self._epochs.schedule.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterators": OpenIterators()}

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next epoch: with `seed` it decides the order, and samplers that count are told.

        Without this, epochs count from 0. Where a loaded state is in the middle of that epoch, it goes on there.

        Raises:
            ValueError: `epoch` is negative, or no int.
        """
        self._epochs.set_next(checked_count("epoch", epoch))

    def seek(self, batch: int) -> None:
        """Let the next epoch begin with batch number `batch`: at once where its place is known, else by reading on.

        Raises:
            ValueError: `batch` is negative, or no int.
        """
        self._epochs.seek(checked_count("batch", batch))

    def skip(self, first: int, end: int, *, epoch: int | None = None) -> None:
        """Leave out the batches with the numbers from `first` up to, but not including, `end`.

        Use it to step over batches that make the loss diverge. The batches around them are the same as without it, and
        keep their numbers; `state_dict()` records it, so that a resumed run leaves out the same ones. Batches of a
        dataset by key are not loaded; those of streams and iterables are read and dropped. `len(loader)` still counts
        them. With several ranks, call it on each.

        Args:
            epoch: by default the one that is running, or else the next.

        Raises:
            ValueError: a number is negative, or no int; there is no batch between them; or some were given already.

        Examples:
            >>> from headrace import DataLoader
            >>> loader = DataLoader(range(10), batch_size=2, output="numpy")
            >>> loader.skip(1, 4)
            >>> [batch.tolist() for batch in loader]
            [[0, 1], [8, 9]]
        """
        if epoch is not None:
            checked_count("epoch", epoch)
        self._epochs.skip(checked_count("first", first), checked_count("end", end), epoch)

    def provenance(self, batch: int, *, epoch: int | None = None, read: bool = False) -> Provenance:
        """Which samples, files and rows are in batch number `batch`: computed, without a log, and without loading it.

        With `seed`, it is known of all epochs, before, while and after they run; without, of the latest one. Streams
        answer where the numbers of rows are known: from files that say so, or from windows that this loader has read.
        With several ranks, the answer is about the batch of this one.

        Args:
            epoch: by default the one that is running, or else the next.
            read: read data to count rows, where nothing else tells how many there are.

        Raises:
            ValueError: it is not known; says why. Or a number is negative, or no int.
            IndexError: the epoch has no such batch.

        Examples:
            >>> from headrace import DataLoader
            >>> loader = DataLoader(range(10), batch_size=3, shuffle=True, seed=1, output="numpy")
            >>> batches = [batch.tolist() for batch in loader]
            >>> loader.provenance(2, epoch=0).keys == batches[2]
            True
        """
        if epoch is not None:
            checked_count("epoch", epoch)
        return self._epochs.provenance(checked_count("batch", batch), epoch, read=read)

    def state_dict(self) -> dict[str, Any]:
        """Where the latest epoch is, small and plain enough for JSON (if the state of your own dataset is).

        Taken in the loop's body, it is the place after the batch at hand; after the loop, the beginning of the next
        epoch. It never changes afterwards. The methods are those of torchdata's StatefulDataLoader.

        With `seed`, everything is in it. Without, the order is, but what is drawn from torch's or NumPy's global
        generators is up to you: save and restore them too, as for the rest of the training.
        """
        return self._epochs.save()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Let the next epoch resume at exactly the batch after the one the state was taken at.

        Another number of workers, engine or prefetch_factor makes no difference; with `seed`, the batch size and the
        number of ranks may be others, too. (Iterable datasets of your own resume with as many workers as before.) For
        a `Stream` on another number of ranks, pass the states of all ranks, as a list.

        Raises:
            StateError: this is not a state, or it was taken of other data or with other arguments; says which.
        """
        self._epochs.load(state)

    def commit(self, state: Mapping[str, Any] | None = None) -> None:
        """Acknowledge to a live source all rows that a state covers: call it when the state has been saved for good.

        A message log then need not keep them for this consumer. What was not committed comes again after a crash. For
        sources that acknowledge nothing, files for example, this checks the state, and does nothing else.

        Args:
            state: as `state_dict` gave it; None for the place after the batch at hand.

        Raises:
            StateError: this is not a state of this loader.
        """
        self._epochs.commit(state)

    def audit(self, *, full: bool = False, expect: Iterable[Any] | None = None) -> Audit:
        """Keep account of the epochs from the next one on, to prove that every sample comes exactly once.

        It costs some fifty microseconds per batch, and at the end of an epoch about the time that drawing its keys
        takes. A further call begins a new account.

        Args:
            full: keep the keys too, so that those that are missing can be named.
            expect: the keys that all ranks together are to get in each epoch, for samplers of your own: mostly
                `range(len(dataset))`.
        """
        from headrace.insight.audit import Audit

        self._epochs.reports.audit = audit = Audit(full=full, expect=expect)
        return audit
