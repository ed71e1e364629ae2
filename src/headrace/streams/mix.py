"""`mix`: several streams as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.streams.mix_plan import STOPS, Stop
from headrace.streams.mixing import MixSource
from headrace.streams.recipe import Recipe
from headrace.streams.schedules import Schedule, Weights
from headrace.streams.stream import Stream


def mix(streams: Sequence[Stream], weights: Weights | None = None, *, stop: Stop = "first", seed: int = 0) -> Stream:
    """A stream that takes each row from one of several streams, by draws in proportion to weights.

    Guarantees: which stream gives the row at a position follows from the seed, the epoch and the position; each
    stream's rows keep their order; workers, ranks and resuming work as for any stream. What comes after (`map`, `take`,
    another `mix` and so on) is done to the mixed rows.

    Numbers of rows are needed to find a row: where nobody knows them, the workers count them, once.

    Args:
        weights: one per stream; equal, if not given. Or they change: pairs of a position and the weights from there on,
            or a function that makes weights of a position, which is asked at every 1024th.
        stop: "first" ends with the first stream that ends; "all" goes on with the others until all have ended;
            "longest" lets streams that have ended start again, shuffled anew, until each has ended once; "never" does
            so for ever.
        seed: of the draws, used if the loader has none.

    Raises:
        TypeError: something is no stream.
        ValueError: there is no stream, the weights do not fit, or a stream is packed.

    Examples:
        >>> a, b = (Stream.from_blocks([0], lambda _, name=name: [name] * 6) for name in "ab")
        >>> "".join(mix([a, b], [2, 1], stop="all", seed=3))
        'aaaaababbbbb'
    """
    if isinstance(streams, (Stream, Mapping)):
        raise TypeError(f"mix takes a list of streams, and their weights beside it, got {type(streams).__name__}.")
    if isinstance(weights, str):
        raise TypeError(f"weights must be numbers, one for each stream, got {weights!r}.")
    if not streams:
        raise ValueError("mix needs at least one stream.")
    for stream in streams:
        if not isinstance(stream, Stream):
            raise TypeError(f"mix takes streams, got {stream!r}. Stream.from_iterable makes one of an iterable.")
        if stream.recipe.packing is not None:
            raise ValueError("pack() must come after mix(): pack the mixed rows.")
    if stop not in STOPS:
        raise ValueError(f"stop must be one of {', '.join(map(repr, STOPS))}, got {stop!r}.")
    schedule = Schedule([1.0] * len(streams) if weights is None else weights, len(streams))
    recipes = [stream.recipe for stream in streams]
    as_columns = all(recipe.as_columns for recipe in recipes)
    return Stream(Recipe(MixSource(recipes, schedule, stop, seed), as_columns=as_columns))
