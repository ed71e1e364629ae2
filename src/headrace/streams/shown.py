"""A stream in one line, as it would be written; without passwords, parameters and the data of users' objects."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from headrace.streams.fitting import PackFit
from headrace.streams.mixing import MixSource
from headrace.streams.recipe import Recipe
from headrace.streams.steps import Filter, FlatMap, Map, MapAtOnce, MapBatches
from headrace.streams.windows import Shuffle

NAMES: dict[type, str] = {
    Map: "map",
    MapAtOnce: "map",
    Filter: "filter",
    FlatMap: "flat_map",
    MapBatches: "map_batches",
    PackFit: "pack",
}
_READERS = {
    "ArrowSource": "read_arrow",
    "CsvSource": "read_csv",
    "JsonLinesSource": "read_jsonl",
    "ParquetSource": "read_parquet",
    "TarSource": "read_tar",
    "TextSource": "read_text",
    "WholeTextSource": "read_text",
    "WordSource": "read_text",
}


def shown_recipe(recipe: Recipe) -> str:
    """What the stream reads, and what is done to its rows, in the order in which it was asked for."""
    parts = [_source(recipe.source)]
    if recipe.shuffle is not None:
        parts.append(f"shuffle({_shuffle(recipe.shuffle)})")
    for stage in range(len(recipe.steps) + 1):
        for limit in recipe.limits:
            if limit.stage == stage:
                parts += [f"skip({limit.skip})"] if limit.skip else []
                parts += [] if limit.take is None else [f"take({limit.take})"]
        if stage < len(recipe.steps):
            step: Any = recipe.steps[stage]
            parts.append(f"{NAMES.get(type(step), type(step).__name__.lower())}({_function(step)})")
    if recipe.rounds != 1:
        parts.append(f"repeat({'' if recipe.rounds is None else recipe.rounds})")
    if recipe.packing is not None:
        parts.append(f"pack({recipe.packing.length}{', drop_rest=True' if recipe.packing.drops_rest else ''})")
    if recipe.as_columns:
        parts.append("as_columns()")
    return ".".join(parts)


def _source(source: Any) -> str:
    name = type(source).__name__
    if isinstance(source, MixSource):
        return f"mix([{', '.join(map(shown_recipe, source.recipes))}])"
    described = source.shown() if hasattr(source, "shown") else None
    if described is not None:
        return str(described)
    paths = getattr(source, "_paths", None)
    if name not in _READERS or paths is None:
        return f"Stream({name})"
    several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    first = repr(without_secrets(str(several[0]))) if several else ""
    more = {"WordSource": ", words=True", "WholeTextSource": ", whole_files=True"}.get(name, "")
    return f"{_READERS[name]}({first if len(several) == 1 else f'[{first}, … {len(several)} paths]'}{more})"


def without_secrets(path: str) -> str:
    """A path or an address without user, password and query, which may be a signature."""
    if "://" not in path:
        return path
    parts = urlsplit(path)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _shuffle(shuffle: Shuffle) -> str:
    return str(shuffle.rows or "") if shuffle.blocks is None else f"blocks={shuffle.blocks}"


def _function(step: Any) -> str:
    fn = getattr(step, "fn", None)
    name = getattr(fn, "__qualname__", None) or type(fn).__name__
    return "…" if "<" in name else name
