"""What a loop over a loader sees: batches and errors, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from headrace import Dataset

E = TypeVar("E", bound=Exception)


class Each(Dataset):
    """What `function` makes of each index."""

    def __init__(self, function: Callable[[int], Any], length: int = 8) -> None:
        self._function = function
        self._length = length

    def __getitem__(self, index: int) -> Any:
        return self._function(index)

    def __len__(self) -> int:
        return self._length


def outcomes(batches: Any, most: int = 100) -> list[Any]:
    """All batches, as lists, and all errors, in the order in which `next` gives them, until `StopIteration`."""
    seen: list[Any] = []
    iterator = iter(batches)
    for _ in range(most):
        try:
            seen.append(plain(next(iterator)))
        except StopIteration:
            return seen
        except Exception as error:  # noqa: BLE001
            seen.append(error)
    raise AssertionError(f"The epoch does not end: {seen}")


def until(kind: type[E], iterator: Iterator[Any]) -> tuple[list[Any], E]:
    """The batches before an error of this kind, as lists, and the error, which holds on to nothing."""
    batches: list[Any] = []
    try:
        for batch in iterator:
            batches.append(plain(batch))  # noqa: PERF401 (those before the error are wanted)
    except kind as error:
        return batches, error.with_traceback(None)
    raise AssertionError(f"There was no {kind.__name__}: {batches}")


def plain(batch: Any) -> Any:
    """An array of any framework as a list; everything else as it is."""
    return np.asarray(batch).tolist() if hasattr(batch, "__array__") else batch


def split(seen: list[Any]) -> tuple[list[Any], list[Exception]]:
    """Batches and errors apart."""
    errors = [each for each in seen if isinstance(each, Exception)]
    return [each for each in seen if not isinstance(each, Exception)], errors


def told(error: BaseException) -> str:
    """All that is shown of an error that came from a worker: its own text, its notes and its cause."""
    notes = getattr(error, "__notes__", [])
    return "\n".join([str(error), *notes, str(error.__cause__ or "")])
