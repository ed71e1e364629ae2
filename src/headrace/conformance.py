"""Checks of any loader, headrace's or another's: exactly once over ranks, resumable anywhere, epochs that differ."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, TypeAlias

from headrace.base.generators import GENERATORS

Batch: TypeAlias = "tuple[Hashable, ...]"
"""What identifies the samples of a batch."""

_SHOWN = 5  # samples that a finding names


@dataclass
class Conformance:
    """What `check_loader` found.

    Attributes:
        findings: what does not hold, in words; empty if all does.
        checked: what was checked.
        skipped: what could not be checked, and why.
    """

    findings: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def report(self) -> str:
        """A line for each check, and for each finding."""
        lines = [f"ok: {name}" for name in self.checked if not any(f.startswith(f"{name}:") for f in self.findings)]
        lines += [f"WRONG: {finding}" for finding in self.findings]
        return "\n".join(lines + [f"skipped: {reason}" for reason in self.skipped])

    def __str__(self) -> str:
        return self.report()


def check_loader(
    loader: Any,
    *,
    world: int = 2,
    workers: Sequence[int] = (0, 2),
    resume_on: Sequence[int] = (),
    key: Callable[[Any], Iterable[Hashable]] | None = None,
    expect: Iterable[Hashable] | None = None,
    may_drop: int = 0,
    may_repeat: int = 0,
    shuffles: bool | None = None,
    most_states: int = 32,
) -> Conformance:
    """Prove that a loader gives every sample exactly once over ranks, and resumes anywhere; headrace's or any other.

    The global generators of Python, NumPy and torch are seeded meanwhile, and then set back.

    Args:
        loader: a function that makes a new loader, and takes any of `rank`, `world` and `num_workers` by name: what it
            does not take is not checked. A loader itself will do for the checks of epochs and states.
        world: how many ranks are compared.
        workers: numbers of workers that must give the same batches.
        resume_on: other numbers of ranks, on which the states of all ranks must resume.
        key: what identifies the samples of a batch; by default their values.
        expect: the samples of an epoch; by default, what one rank alone gets.
        may_drop: how many samples of an epoch may be left out, to make ranks even.
        may_repeat: how many may come twice.
        shuffles: whether epochs must differ; None if they must unless the first one is in ascending order.
        most_states: at how many batches of an epoch, at most, it is resumed.

    Returns:
        What was checked, and what could not be.

    Raises:
        AssertionError: something does not hold; says what, with the samples.

    Examples:
        >>> from headrace import DataLoader
        >>> def make(rank, world, num_workers):
        ...     return DataLoader(
        ...         range(20), 3, shuffle=True, seed=1, shard=(rank, world), num_workers=num_workers, engine="threads"
        ...     )
        >>> print(check_loader(make, resume_on=(1,)))
        ok: length
        ok: epochs
        ok: workers
        ok: ranks
        ok: resume
        ok: other ranks
    """
    check = _Check(_Factory(loader), key or samples_of, Conformance())
    with _seeded_generators():
        first, second = check.epochs(shuffles)
        check.workers(workers, [first, second])
        check.ranks(world, expect, may_drop, may_repeat)
        check.resume(most_states)
        check.other_ranks(world, resume_on, may_drop, may_repeat)
    if check.result.findings:
        raise AssertionError(f"The loader does not do what trainers need:\n{check.result.report()}")
    return check.result


class _Factory:
    """Makes loaders, as far as there is something to make them."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.makes = callable(loader) and not hasattr(loader, "__iter__")
        parameters = inspect.signature(loader).parameters if self.makes else {}
        takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        self.takes = {name for name in ("rank", "world", "num_workers") if takes_all or name in parameters}

    @property
    def deals(self) -> bool:
        """Whether it makes the loaders of several ranks."""
        return {"rank", "world"} <= self.takes

    @contextmanager
    def loader(self, **options: int) -> Iterator[Any]:
        """One that is closed afterwards, if it can be."""
        if not self.makes:
            yield self._loader
            return
        options = {"rank": 0, "world": 1, "num_workers": 0, **options}
        made = self._loader(**{name: value for name, value in options.items() if name in self.takes})
        try:
            yield made
        finally:
            close = getattr(made, "close", None)
            if callable(close):
                close()


class _Check:
    def __init__(self, make: _Factory, key: Callable[[Any], Iterable[Hashable]], result: Conformance) -> None:
        self._make = make
        self._key = key
        self.result = result

    def _found(self, name: str, text: str) -> None:
        self.result.findings.append(f"{name}: {text}")

    def _skip(self, name: str, why: str) -> None:
        self.result.skipped.append(f"{name}: {why}")

    def _batches(self, batches: Iterable[Any]) -> list[Batch]:
        return [tuple(self._key(batch)) for batch in batches]

    def _epochs_of(self, **options: int) -> list[list[Batch]]:
        _seed_generators()
        with self._make.loader(**options) as loader:
            return [self._batches(loader) for _ in range(2)]

    def epochs(self, shuffles: bool | None) -> tuple[list[Batch], list[Batch]]:
        """The length is true, and epochs have the same samples in another order."""
        _seed_generators()
        with self._make.loader() as loader:
            try:
                length = len(loader)
            except (TypeError, NotImplementedError) as error:
                length = None
                self._skip("length", f"it has none ({error})")
            first, second = (self._batches(loader) for _ in range(2))
        if length is not None:
            self.result.checked.append("length")
            if length != len(first):
                self._found("length", f"len() must be the number of batches, got {length} for {len(first)}.")
        self.result.checked.append("epochs")
        if not first:
            self._found("epochs", "the first epoch must have batches, got none.")
        if Counter(_flat(first)) != Counter(_flat(second)):
            self._found("epochs", f"all must have the same samples, but {_difference(_flat(first), _flat(second))}.")
        if first == second and (shuffles or (shuffles is None and not _is_ascending(_flat(first)))):
            self._found(
                "epochs",
                "the second one must differ from the first, got the same order. If nothing is to be shuffled, pass "
                "shuffles=False.",
            )
        return first, second

    def workers(self, workers: Sequence[int], epochs: list[list[Batch]]) -> None:
        """The number of workers makes no difference."""
        if "num_workers" not in self._make.takes:
            self._skip("workers", "pass a function that takes num_workers.")
            return
        self.result.checked.append("workers")
        for number in workers:
            for epoch, (expected, got) in enumerate(zip(epochs, self._epochs_of(num_workers=number), strict=True)):
                if got != expected:
                    where = _first_difference(expected, got)
                    self._found(
                        "workers", f"{number} must give the same batches as 0; in epoch {epoch} they differ: {where}."
                    )
                    break

    def ranks(self, world: int, expect: Iterable[Hashable] | None, may_drop: int, may_repeat: int) -> None:
        """All ranks together get every sample once, in as many steps."""
        if not self._make.deals:
            self._skip("ranks", "pass a function that takes rank and world.")
            return
        self.result.checked.append("ranks")
        wholes = self._epochs_of() if expect is None else [[tuple(expect)]] * 2
        ranks = [self._epochs_of(rank=rank, world=world) for rank in range(world)]
        for epoch, whole in enumerate(wholes):
            parts = [rank[epoch] for rank in ranks]
            self._once("ranks", f"in epoch {epoch}, ", _flat(whole), _flat(chain(*parts)), may_drop, may_repeat)
            steps = [len(part) for part in parts]
            if len(set(steps)) > 1:
                self._found("ranks", f"all must take as many steps, got {steps} in epoch {epoch}: some would wait.")

    def _once(
        self, name: str, where: str, whole: list[Hashable], came: list[Hashable], may_drop: int, may_repeat: int
    ) -> None:
        missing, extra = Counter(whole) - Counter(came), Counter(came) - Counter(whole)
        if missing.total() > may_drop:
            self._found(
                name,
                f"{where}{missing.total()} of {len(whole)} samples came to no rank: {_shown(missing)}. At most "
                f"{may_drop} may be left out: pass may_drop= if more are meant to be.",
            )
        if extra.total() > may_repeat:
            self._found(
                name,
                f"{where}{extra.total()} samples came too often: {_shown(extra)}. At most {may_repeat} may be: does "
                "each rank get a part of its own?",
            )

    def resume(self, most_states: int) -> None:
        """A state at any batch leads to the rest, twice; after the last batch, to the next epoch."""
        _seed_generators()
        with self._make.loader() as loader:
            if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
                self._skip("resume", f"{type(loader).__name__} has no state_dict() and load_state_dict().")
                return
            self.result.checked.append("resume")
            states, whole = [deepcopy(loader.state_dict())], []
            kept = []
            for batch in loader:
                whole.append(tuple(self._key(batch)))
                kept.append(loader.state_dict())
                states.append(deepcopy(kept[-1]))
            if repr(kept) != repr(states[1:]):
                self._found("resume", "a state must not change after it was taken, but some did.")
            after = deepcopy(loader.state_dict())
        n = len(whole)
        few = sorted({round(i * (n - 1) / most_states) for i in range(most_states)})
        for number in range(n) if n <= most_states else few:
            if not self._resumes(states[number], whole, number):
                return  # the others will be wrong, too
        for state, when in ((states[n], "taken at the last batch"), (after, "taken after the last batch")):
            _seed_generators(1)
            with self._make.loader() as loader:
                loader.load_state_dict(state)
                rest = self._batches(loader)
            if Counter(_flat(rest)) != Counter(_flat(whole)):
                self._found("resume", f"a state {when} must lead to the next epoch of {n} batches, got {len(rest)}.")

    def _resumes(self, state: Any, whole: list[Batch], number: int) -> bool:
        expected = whole[number:]
        seed = 0 if number == 0 else 1  # before the first batch, the order may still depend on them
        with self._make.loader() as loader:
            for _ in range(2):
                _seed_generators(seed)
                loader.load_state_dict(deepcopy(state))
                rest = self._batches(loader)
                if rest != expected:
                    where = _first_difference(expected, rest)
                    self._found("resume", f"a state after {number} of {len(whole)} batches must lead on: {where}.")
                    return False
            _seed_generators(seed)
            loader.load_state_dict(deepcopy(state))
            iterator = iter(loader)
            self._batches(islice(iterator, 1))
            again = deepcopy(loader.state_dict())
        del iterator
        if number + 1 == len(whole):
            return True
        with self._make.loader() as loader:
            loader.load_state_dict(again)
            rest = self._batches(loader)
        if rest != expected[1:]:
            where = _first_difference(expected[1:], rest)
            self._found("resume", f"a state soon after a resume at batch {number} must lead on: {where}.")
        return rest == expected[1:]

    def other_ranks(self, world: int, resume_on: Sequence[int], may_drop: int, may_repeat: int) -> None:
        """What one number of ranks had not given is given by another one."""
        if not resume_on:
            return
        if not self._make.deals:
            self._skip("other ranks", "pass a function that takes rank and world.")
            return
        self.result.checked.append("other ranks")
        whole = _flat(self._epochs_of()[0])
        fewest = min(len(self._epochs_of(rank=rank, world=world)[0]) for rank in range(world))
        for steps in sorted({1, fewest // 2}):
            before: list[Batch] = []
            states: list[Any] = []
            for rank in range(world):
                _seed_generators()
                with self._make.loader(rank=rank, world=world) as loader:
                    before += self._batches(islice(loader, steps))
                    states.append(deepcopy(loader.state_dict()))
            for others in resume_on:
                for given, what in ((states[:1], "that of rank 0"), (states, "those of all ranks")):
                    came = list(before)
                    try:
                        came += self._rest_on(others, given)
                    except Exception as error:  # noqa: BLE001 (each library has its own)
                        if len(given) == 1:
                            self._found(
                                "other ranks", f"the state of one rank must resume on {others} ranks: {error!r:.200}"
                            )
                        continue  # not all kinds of loaders take, or need, those of all
                    where = f"resumed on {others} ranks after {steps} steps from {what}, "
                    self._once("other ranks", where, whole, _flat(came), may_drop + others - 1, may_repeat + others - 1)

    def _rest_on(self, world: int, states: list[Any]) -> list[Batch]:
        rest: list[Batch] = []
        for rank in range(world):
            with self._make.loader(rank=rank, world=world) as loader:
                loader.load_state_dict(deepcopy(states[0] if len(states) == 1 else states))
                rest += self._batches(loader)
        return rest


def samples_of(batch: Any) -> Iterator[Hashable]:
    """The samples of a batch by their values: the rows of arrays, or what a list has.

    Of several arrays of one length, in a list, tuple or dict, their rows belong together. With a mask, as multi-stream
    loaders give it, only what it marks counts.
    """
    mask = getattr(batch, "mask", None) if isinstance(batch, tuple) else None
    if mask is not None:
        yield from (one for one, is_there in zip(samples_of(batch[0]), _frozen(mask), strict=True) if is_there)
        return
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        lengths = {len(part) if _has_rows(part) else None for part in batch}
        if len(lengths) == 1 and None not in lengths:
            yield from zip(*map(_frozen, batch), strict=True)
        else:
            yield from map(_frozen, batch)
    elif _has_rows(batch):
        yield from _frozen(batch)
    else:
        yield _frozen(batch)


def _has_rows(value: Any) -> bool:
    return bool(getattr(value, "shape", ()))


def _frozen(value: Any) -> Any:
    """The same value, hashable."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    if isinstance(value, Mapping):
        return tuple((name, _frozen(item)) for name, item in value.items())
    return value if isinstance(value, Hashable) else repr(value)


def _flat(batches: Iterable[Batch]) -> list[Hashable]:
    return [sample for batch in batches for sample in batch]


def _is_ascending(samples: list[Any]) -> bool:
    try:
        return samples == sorted(samples)
    except TypeError:
        return False


def _shown(samples: Counter[Hashable]) -> str:
    named = list(samples)
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return f"{', '.join(f'{one!r:.80}' for one in named[:_SHOWN])}{more}"


def _difference(expected: list[Hashable], came: list[Hashable]) -> str:
    missing, extra = Counter(expected) - Counter(came), Counter(came) - Counter(expected)
    parts = [f"{missing.total()} are missing: {_shown(missing)}"] if missing else []
    return "; ".join(parts + ([f"{extra.total()} are too many: {_shown(extra)}"] if extra else []))


def _first_difference(expected: list[Batch], got: list[Batch]) -> str:
    for number, (one, other) in enumerate(zip(expected, got, strict=False)):
        if one != other:
            return f"batch {number} from there is {other!r:.120}, and must be {one!r:.120}"
    return f"{len(expected)} batches must come, got {len(got)}"


def _seed_generators(seed: int = 0) -> None:
    for generator in GENERATORS:
        generator.seed(seed)


@contextmanager
def _seeded_generators() -> Iterator[None]:
    saved = [generator.save() for generator in GENERATORS]
    try:
        yield
    finally:
        for generator, state in zip(GENERATORS, saved, strict=True):
            generator.restore(state)
