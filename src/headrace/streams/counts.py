"""How many rows windows have: told by their source, remembered, or counted by reading them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.streams.messages import Counted, CountRows
from headrace.streams.recipe import Ask, Recipe
from headrace.streams.windows import PastTheEndError, Share


class RowCounts:
    """The numbers of rows of a recipe's windows.

    Guarantees: a window is read at most once to count it; what follows from that for other epochs is remembered. Where
    steps work row by row and draw no random numbers, that is the number of rows of each block: then nothing is ever
    counted again.

    Args:
        skips: whether bad rows are left out: then only reading tells.
        path: see `CountRows`.
    """

    def __init__(self, recipe: Recipe, *, skips: bool = False, path: tuple[int, ...] = ()) -> None:
        self._recipe = recipe
        self._skips = skips
        self._path = path
        self._remembered: dict[Any, int] = {}  # of blocks and windows, in any epoch
        self._of_epoch: dict[Any, int] = {}  # of windows, in the latest one
        self._lengths: dict[Any, Any] = {}  # of the rows of windows, by their blocks
        self._epoch = -1
        parts: Sequence[Recipe] = getattr(recipe.source, "recipes", ())
        self.parts = tuple(RowCounts(part, skips=skips, path=(*path, i)) for i, part in enumerate(parts))

    def known(self, share: Share, n_steps: int | None = None) -> int | None:
        """How many rows a share has, if that is known without reading."""
        whole = self._known_of_window(share, n_steps)
        return None if whole is None else self._of_share(share, whole)

    def count(self, shares: Sequence[Share], ask: Ask, n_steps: int | None = None) -> list[int]:
        """How many rows each of some shares has; those of which nobody knows are counted, all at once.

        Raises:
            PastTheEndError: the data had ended before one of them.
        """
        missing = {
            self._key(share, n_steps, share.window.key): share
            for share in shares
            if self._known_of_window(share, n_steps) is None
        }
        wanted = [self._counted_part(share) for share in missing.values()]
        answers = ask([CountRows(share, self._path, n_steps) for share in wanted]) if wanted else []
        for share, answer in zip(missing.values(), answers, strict=True):
            if answer.is_past_end:
                raise PastTheEndError
            self._remember(share, n_steps, answer)
        known = [self.known(share, n_steps) for share in shares]
        return [n for n in known if n is not None]

    def measure(self, shares: Sequence[Share], ask: Ask) -> list[Any]:
        """The lengths of the rows of whole windows, as arrays; remembered where they are the same in any epoch.

        Raises:
            PastTheEndError: the data had ended before one of them.
        """
        missing = [share for share in shares if self._lengths.get(share.window.blocks) is None]
        answers = ask([CountRows(share, self._path, None, True) for share in missing]) if missing else []
        measured: dict[Any, Any] = {}
        for share, answer in zip(missing, answers, strict=True):
            if answer.is_past_end:
                raise PastTheEndError
            self._note(share, None, answer.n_rows)
            measured[share.window.key] = answer.lengths
            if answer.is_settled and not share.window.is_shuffled and not share.window.cuts:
                self._lengths[share.window.blocks] = answer.lengths
        return [
            measured[share.window.key] if share.window.key in measured else self._lengths[share.window.blocks]
            for share in shares
        ]

    def note(self, share: Share, n_rows: int) -> None:
        """A window was read, and has so many rows."""
        if share == Share(share.window):
            self._note(share, None, n_rows)

    def _note(self, share: Share, n_steps: int | None, n_rows: int) -> None:
        if share.window.epoch != self._epoch:
            self._epoch, self._of_epoch = share.window.epoch, {}
        self._of_epoch[self._key(share, n_steps, share.window.key)] = n_rows

    def _remember(self, share: Share, n_steps: int | None, answer: Counted) -> None:
        if answer.by_block is not None:
            for block, n_rows in zip(share.window.blocks, answer.by_block, strict=True):
                self._remembered[block, n_steps] = n_rows
        elif answer.is_settled and not share.window.is_shuffled:
            self._remembered[self._key(share, n_steps, share.window.blocks)] = answer.n_rows
        else:
            self._note(share, n_steps, answer.n_rows)

    def _known_of_window(self, share: Share, n_steps: int | None) -> int | None:
        window = share.window
        known = self._of_epoch.get(self._key(share, n_steps, window.key))
        if known is None and not window.is_shuffled:
            known = self._remembered.get(self._key(share, n_steps, window.blocks))
        if known is not None or window.cuts or self._is_part(share):
            return known
        is_told = self._is_told(n_steps)
        counts = [
            block.rows if is_told and block.rows is not None else self._remembered.get((block, n_steps))
            for block in window.blocks
        ]
        return None if None in counts else sum(n for n in counts if n is not None)

    def _is_told(self, n_steps: int | None) -> bool:
        """Whether windows have as many rows as their source says."""
        counts_tokens = n_steps is None and self._recipe.packing is not None
        return not self._skips and not counts_tokens and all(step.keeps_count for step in self._recipe.steps[:n_steps])

    def _is_part(self, share: Share) -> bool:
        """Whether a share must be counted by itself, because the whole window does not tell."""
        return self._recipe.packing is not None and (share.first, share.step) != (0, 1)

    def _counted_part(self, share: Share) -> Share:
        is_part = self._is_part(share)
        return Share(share.window, share.first, share.step) if is_part else Share(share.window)

    def _of_share(self, share: Share, n_rows: int) -> int:
        """How many rows a share has of a window of so many."""
        if not self._is_part(share):
            n_rows = share.n_dealt(n_rows)
        n_rows = max(0, n_rows - share.skip)
        return n_rows if share.most is None else min(n_rows, share.most)

    def _key(self, share: Share, n_steps: int | None, identity: Any) -> Any:
        part = (share.first, share.step) if self._is_part(share) else None
        return identity, share.window.cuts, part, n_steps
