"""torch's own DataLoader, patched to load with headrace: unmodified scripts get the same batches, sooner.

The class stays torch's, with its constructor, its attributes and its subclasses; only its `__iter__` asks here who is
to load. What headrace cannot load as torch would is left to torch, and reported.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from headrace.loader import DataLoader
from headrace.order.batch_sampler import BatchSampler
from headrace.order.samplers import RandomSampler, SequentialSampler

_PRIVATE = ("_get_iterator", "_index_sampler", "_auto_collation")
"""What torch's DataLoader asks itself when it starts an epoch: a subclass with another answer must be asked."""

_ARGUMENTS = (
    "dataset",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)
_TORCH_PREFETCH = 2  # what torch makes of None, so nobody can tell whether the script chose it


@dataclass(frozen=True)
class ScriptLine:
    """Where in the script a loader was iterated first."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True)
class Served:
    """A loader of headrace that stands behind one of torch's.

    Attributes:
        made_of: what it was made of; where one of these is another, so must the loader be.
    """

    loader: DataLoader[Any]
    place: ScriptLine
    made_of: tuple[Any, ...]

    def is_made_of(self, parts: tuple[Any, ...]) -> bool:
        return len(parts) == len(self.made_of) and all(a is b for a, b in zip(parts, self.made_of, strict=True))


class TorchPatch:
    """Lets headrace load for torch's DataLoaders in this process.

    Args:
        tell: called with one line for each kind of loader that is left to torch.
        note: called with each of torch's loaders and the one of headrace behind it, when that is made.
    """

    def __init__(self, tell: Callable[[str], None], note: Callable[[Any, Served], None]) -> None:
        self._tell = tell
        self._note = note
        self._served: weakref.WeakKeyDictionary[Any, Served] = weakref.WeakKeyDictionary()
        self._told: set[tuple[type, str]] = set()

    def install(self, module: ModuleType) -> Callable[[], None]:
        """Serve the DataLoader of `torch.utils.data.dataloader`; the function that is returned ends it again."""
        theirs, torch_iterator = module.DataLoader, module._BaseDataLoaderIter
        iterate, begin = theirs.__iter__, torch_iterator.__init__

        def iterate_served(loader: Any) -> Any:
            served = self._serve(loader, module)
            return iterate(loader) if served is None else _begun(served)

        def begin_theirs(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            if type(loader).__iter__ is not iterate_served and type(loader) not in {kind for kind, _ in self._told}:
                self._leave(loader, "it makes its iterators itself")
            begin(iterator, loader, *args, **kwargs)

        theirs.__iter__, torch_iterator.__init__ = iterate_served, begin_theirs

        def uninstall() -> None:
            theirs.__iter__, torch_iterator.__init__ = iterate, begin

        return uninstall

    def _serve(self, loader: Any, module: ModuleType) -> DataLoader[Any] | None:
        """The loader that does the work of this one; None if torch has to do it itself."""
        changed = [name for name in _PRIVATE if getattr(type(loader), name) is not getattr(module.DataLoader, name)]
        if changed:
            self._leave(loader, f"it has a {changed[0]} of its own")
            return None
        try:
            served = self._find_or_make(loader, module)
        except Exception as error:  # noqa: BLE001 (whatever it is, torch may be able to do it)
            self._leave(loader, f"{type(error).__name__}: {error}")
            return None
        if loader._IterableDataset_len_called is not None:
            served._promised_samples = loader._IterableDataset_len_called
        return served

    def _find_or_make(self, loader: Any, module: ModuleType) -> DataLoader[Any]:
        parts = tuple(_parts_of(loader, module))
        served = self._served.get(loader)
        if served is None or not served.is_made_of(parts):
            if served is not None:
                served.loader.close()
            with _one_warning_of_many_workers():
                made = DataLoader(**_arguments_of(loader, module))
            served = Served(made, _line_of_the_script(), parts)
            self._served[loader] = served
            self._note(loader, served)
        return served.loader

    def _leave(self, loader: Any, reason: str) -> None:
        kind = (type(loader), reason)
        if kind not in self._told:
            self._told.add(kind)
            self._tell(f"{type(loader).__name__} at {_line_of_the_script()} is left to torch: {reason}.")


def _begun(loader: DataLoader[Any]) -> Iterator[Any]:
    """An iterator that has drawn what torch's would have drawn by now: a script may draw on before its first batch."""
    iterator = iter(loader)
    iterator.begin_now()
    return iterator


def _parts_of(loader: Any, module: ModuleType) -> Iterator[Any]:
    """Everything that a loader of headrace is made of: also what its samplers hold, where they are exchanged."""
    yield from (getattr(loader, name) for name in (*_ARGUMENTS, "prefetch_factor", "batch_size", "drop_last"))
    for sampler in (loader.batch_sampler, loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        yield sampler
        if type(sampler) in (module.BatchSampler, module.RandomSampler):
            yield from vars(sampler).values()


def _arguments_of(loader: Any, module: ModuleType) -> dict[str, Any]:
    arguments = {name: getattr(loader, name) for name in _ARGUMENTS}
    if loader.prefetch_factor != _TORCH_PREFETCH:
        arguments["prefetch_factor"] = loader.prefetch_factor
    return {**arguments, "output": "auto", **_order_of(loader, module)}


def _order_of(loader: Any, module: ModuleType) -> dict[str, Any]:
    """The arguments that decide the order, with torch's samplers exchanged for headrace's where they are as quick."""
    batches = loader.batch_sampler
    if loader._dataset_kind == module._DatasetKind.Iterable:
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if batches is None:
        return {"batch_size": None, "sampler": _counterpart(loader.sampler, module)}
    if type(batches) is not module.BatchSampler:
        return {"batch_sampler": batches}
    sampler = _counterpart(batches.sampler, module)
    if loader.batch_size is None:
        return {"batch_sampler": BatchSampler(sampler, batches.batch_size, batches.drop_last)}
    return {"batch_size": batches.batch_size, "sampler": sampler, "drop_last": batches.drop_last}


def _counterpart(sampler: Any, module: ModuleType) -> Any:
    """The sampler of headrace that draws what this one of torch's would; any other one as it is."""
    if type(sampler) is module.SequentialSampler:
        return SequentialSampler(sampler.data_source)
    if type(sampler) is module.RandomSampler:
        return RandomSampler(
            sampler.data_source, sampler.replacement, sampler._num_samples, sampler.generator, library="torch"
        )
    return sampler


@contextmanager
def _one_warning_of_many_workers() -> Iterator[None]:
    """Leave it to torch, which has given it already when its loader was made."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def _line_of_the_script() -> ScriptLine:
    """The nearest line of the user's own code: a trainer that iterates the loader for it is no answer.

    If there is none, as in a thread of a library, the nearest one that is neither headrace's nor torch's.
    """
    nearest = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _LOADERS:
            line = ScriptLine(frame.f_code.co_filename, frame.f_lineno)
            if not _is_installed(line.file):
                return line
            nearest = nearest or line
        frame = frame.f_back
    return nearest or ScriptLine("unknown", 0)


_LOADERS = {"headrace", "torch", "torchdata"}
_STANDARD_LIBRARY = str(Path(sysconfig.get_path("stdlib")))


def _is_installed(file: str) -> bool:
    """Whether a file is of an installed package, or of Python itself."""
    folders = Path(file).parts
    return (
        "site-packages" in folders
        or "dist-packages" in folders
        or file.startswith((_STANDARD_LIBRARY + os.sep, "<frozen "))
    )
