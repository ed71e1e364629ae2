"""What a state says of its stream, and whether it fits. Files may be touched, copied and moved, but not changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

from headrace.base.errors import InternalError, StateError
from headrace.base.schema import anything, count, each, either, items, maybe, record, text
from headrace.base.state import check_equal
from headrace.sources.files import fingerprint, is_local
from headrace.sources.source import Block
from headrace.streams.live import LiveSource
from headrace.streams.recipe import PlannedSource, Recipe

Listing: TypeAlias = "list[list[Any]] | int"
"""The files of a stream, each as a `ListedFile`; of many, their number only."""

_MOST_FILES = 100


def parse_described(value: Any, path: str) -> Any:
    """The schema of what `describe` gives; what is only compared may be anything."""
    return _DESCRIBED(value, path)


_FILE = each(text, maybe(count), maybe(text), optional=maybe(text))
_DESCRIBED = record(
    {
        "files": either(lambda files: type(files) is int, count, items(_FILE)),
        "mix": maybe(each(anything, anything, items(parse_described))),
    },
    others=anything,
)


class ListedFile(NamedTuple):
    """A file as a state tells of it."""

    path: str
    size: int | None
    version: str | None
    ends: str | None = None  # a fingerprint; states that were saved before there were any have none


def describe(recipe: Recipe) -> dict[str, Any]:
    """What a state must agree with: plain values, for JSON."""
    source = recipe.source
    parts = [describe(part) for part in getattr(source, "recipes", ())]
    live = {"live": source.connector.identity} if isinstance(source, LiveSource) else {}
    return {
        **getattr(source, "signature", {}),
        **live,
        "n_blocks": None if isinstance(source, PlannedSource) else len(source.blocks()),
        "files": [] if parts else _list_files(source),  # those of a mix are told by its parts
        "shuffle": None if recipe.shuffle is None else _describe_shuffle(recipe),
        "steps": [getattr(step, "signature", type(step).__name__) for step in recipe.steps],
        "limits": [[limit.stage, limit.skip, limit.take] for limit in recipe.limits],
        "rounds": recipe.rounds,
        "packing": None if recipe.packing is None else recipe.packing.length,
        **({"packed_steps": len(recipe.packed_steps)} if recipe.packed_steps else {}),
        "mix": [_describe_mix(source), source.seed, parts] if parts else None,
    }


def _describe_mix(source: Any) -> dict[str, Any]:
    return {**source.describe(), "schedule": source.weights.pairs}


def saved_weights(described: Mapping[str, Any]) -> list[list[Any]] | None:
    """The weights of a mix that a state was taken with, as pairs of a position and weights; None if a function says."""
    mix = described["mix"][0]
    pairs: list[list[Any]] | None = mix.get("schedule", [[0, mix["weights"]]])
    return pairs


def has_other_weights(saved: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether a state is of a mix with other weights. Functions are taken for the same if they begin alike."""
    if not _parts(saved) or not _parts(own):
        return False
    before, now = saved_weights(saved), saved_weights(own)
    if before is None or now is None or "schedule" not in saved["mix"][0]:
        return bool(saved["mix"][0]["weights"] != own["mix"][0]["weights"])
    return before != now


def _describe_shuffle(recipe: Recipe) -> list[Any]:
    """What windows are made of. How many blocks hold so many rows follows from the files."""
    shuffle = recipe.shuffle
    assert shuffle is not None
    if shuffle.rows is not None:
        return [shuffle.rows, shuffle.seed, "rows"]
    blocks = [] if isinstance(recipe.source, PlannedSource) else recipe.source.blocks()
    return [shuffle.blocks_per_window(blocks, _count_none), shuffle.seed]


def _count_none(block: Block) -> int:
    raise InternalError("The rows of a window of blocks need not be counted.")


def check_described(saved: Mapping[str, Any], own: Mapping[str, Any], warn: Callable[[str], None]) -> None:
    """Compare what a state says of its stream with what this stream is.

    Args:
        warn: hears of files that may have changed, but need not: only the time of their last change differs.

    Raises:
        StateError: something differs; it is named.
    """
    doubtful = _compare(saved, own)
    if doubtful:
        others = f" and {len(doubtful) - 1:,} other files were" if len(doubtful) > 1 else " was"
        warn(
            f"{doubtful[0]}{others} last changed at another time than the state says. The size is the same, so loading "
            "goes on; if the content is not, start the epoch anew."
        )


def _compare(saved: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """The files that may have changed."""
    saved_parts, own_parts = _parts(saved), _parts(own)
    check_equal({"mixed streams": len(saved_parts)}, {"mixed streams": len(own_parts)})
    # Before the rest: other files have other numbers of blocks, too.
    doubtful = [] if own_parts else compare_files(saved["files"], own["files"])
    for saved_part, own_part in zip(saved_parts, own_parts, strict=True):
        if has_other_weights(saved_part, own_part):
            check_equal({"weights": saved_weights(saved_part)}, {"weights": saved_weights(own_part)})
        doubtful += _compare(saved_part, own_part)
    check_equal(_without_files(saved), _without_files(own))
    return doubtful


def _parts(described: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    parts: Sequence[Mapping[str, Any]] = () if described["mix"] is None else described["mix"][2]
    return parts


def _without_files(described: Mapping[str, Any]) -> dict[str, Any]:
    mix = described["mix"]
    return {**described, "files": None, "mix": None if mix is None else [_without_weights(mix[0]), mix[1]]}


def _without_weights(mix: Any) -> Any:
    """What is said of a mix but for its weights, which may change; see `has_other_weights`."""
    if not isinstance(mix, Mapping):
        return mix
    return {name: value for name, value in mix.items() if name not in ("weights", "schedule")}


def _list_files(source: Any) -> Listing:
    files = source.versions()
    if len(files) > _MOST_FILES:
        return len(files)
    return [[file.path, file.size, file.version, fingerprint(file)] for file in files]


def compare_files(saved: Listing, own: Listing) -> list[str]:
    """The files that may have changed, though nothing says so but the time of their last change.

    Raises:
        StateError: a file has certainly changed, or there are others.
    """
    if isinstance(saved, int) or isinstance(own, int):
        _check_number(saved, own, "")
        return []
    before, now = [ListedFile(*file) for file in saved], [ListedFile(*file) for file in own]
    _check_number(saved, own, _odd_ones(before, now))
    for number, names in enumerate(zip(_names(before), _names(now), strict=True)):
        if names[0] != names[1]:
            _refuse(f"file {number + 1} of {len(now)} was {before[number].path}, and is {now[number].path}")
    return [file.path for was, file in zip(before, now, strict=True) if not _is_certain(was, file)]


def _is_certain(was: ListedFile, file: ListedFile) -> bool:
    """Whether this is the same file, and not only one that looks like it.

    Raises:
        StateError: it is another one.
    """
    if was.size != file.size:
        _refuse(f"{file.path} had {_bytes(was.size)}, and has {_bytes(file.size)}")
    if file.size is None:  # a query, or an answer of a web server: nothing but its version tells what is in it
        if (was.path, was.version) != (file.path, file.version):
            cure = " (pass the old version to its reader)" if (was.version or "").isdigit() else ""
            _refuse(f"{was.path} was of version {was.version}, and {file.path} is of version {file.version}{cure}")
        return True
    if was.ends is not None and file.ends is not None:
        if was.ends != file.ends:
            _refuse(f"{file.path} still has {_bytes(file.size)}, but others")
        return True
    # A store's version is one of the content; a time is not, and what two stores say cannot be compared.
    if was.version != file.version and was.path == file.path and not is_local(file.path):
        _refuse(f"{file.path} was of version {was.version}, and is of version {file.version}")
    return was.version == file.version


def _names(files: Sequence[ListedFile]) -> list[list[str]]:
    """The paths without the folder that all of them lie in: what is left of them where the data is moved."""
    paths = [file.path.split("/") for file in files]
    n_common = 0
    while all(len(path) > n_common + 1 for path in paths) and len({path[n_common] for path in paths}) == 1:
        n_common += 1
    return [path[n_common:] for path in paths]


def _check_number(saved: Listing, own: Listing, odd_ones: str) -> None:
    n_saved, n_own = (files if isinstance(files, int) else len(files) for files in (saved, own))
    if n_saved != n_own:
        _refuse(f"there were {n_saved:,} files, and there are {n_own:,}{odd_ones}")


def _odd_ones(before: Sequence[ListedFile], now: Sequence[ListedFile]) -> str:
    """The first file that is there only before, or only now."""
    was, are = (Counter(file.path.rpartition("/")[2] for file in files) for files in (before, now))
    told = [f"{name} is {what}" for odd, what in ((was - are, "missing"), (are - was, "new")) for name in list(odd)[:1]]
    return f" ({', '.join(told)})" if told else ""


def _bytes(size: int | None) -> str:
    return "a size that is not known" if size is None else f"{size:,} bytes"


def _refuse(difference: str) -> NoReturn:
    """Say that a state does not fit.

    Raises:
        StateError: always.
    """
    raise StateError(
        f"The state does not fit this loader, for the data is not what it was taken with: {difference}. Put it back as "
        "it was, or start the epoch anew, without the state."
    )
