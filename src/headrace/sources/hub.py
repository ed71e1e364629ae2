"""Datasets of Hugging Face: what `save_to_disk` wrote, and the Hub's folders of Parquet files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.base.errors import RecordError
from headrace.sources.files import list_files, open_range, path_below
from headrace.sources.options import FileOptions
from headrace.sources.source import FileVersion

_HUB = "hf://datasets/"
_SPLITS = re.compile(r"(?:^|[-._ 0-9/])(train|test|validation|valid|dev|val|eval|testing|training)(?=$|[-._ 0-9/])")
_SAME = {"training": "train", "testing": "test", "eval": "test", "valid": "validation", "val": "validation"}
_SAME["dev"] = "validation"
_SHARD = re.compile(r"([\w.-]*?)-\d{5}-of-\d{5}[^/]*\.parquet")
_SKIPPED = ("data",)  # a folder that says nothing


class HubFiles(NamedTuple):
    """The files of one split.

    Attributes:
        format: "arrow" or "parquet".
    """

    format: str
    paths: list[str]


def find_hub_files(
    dataset: str | os.PathLike[str], split: str | None, config: str | None, options: FileOptions
) -> HubFiles:
    """The files of a split of a dataset.

    Args:
        dataset: a folder, an address, or the name of a dataset on the Hub, `owner/name`, or `owner/name@revision`.
        split: its name; None if there is only one.
        config: the name of a configuration of the dataset, which is a folder; None if there is only one.

    Raises:
        FileNotFoundError: there is no such dataset, or no Parquet file in it.
        ValueError: there are several splits or configurations, or none of that name.
    """
    root = os.fspath(dataset).rstrip("/")
    if "://" not in root and not os.path.exists(root) and root.count("/") == 1:
        root = _HUB + root
    files = list_files(root, options)
    names = {path_below(file.path, root): file for file in files}
    if "dataset_dict.json" in names or "state.json" in names:
        return _saved(root, names, split, options)
    tables = [name for name in names if name.endswith(".parquet")]
    if not tables:
        raise FileNotFoundError(f"{root!r} must have Parquet files, or be a folder that `save_to_disk` wrote.")
    by_config = _group(tables, _config_of)
    chosen = _choose("config", config, by_config, root)
    of_split = _choose("split", split, _group(chosen, _split_of), root)
    return HubFiles("parquet", [names[name].path for name in of_split])


def _saved(root: str, names: Mapping[str, FileVersion], split: str | None, options: FileOptions) -> HubFiles:
    """The files of what `save_to_disk` wrote: a dataset, or a dict of them."""
    folder = ""
    if "dataset_dict.json" in names:
        splits = _load(names["dataset_dict.json"], "splits", options)
        folder = _choose("split", split, {name: [f"{name}/"] for name in splits}, root)[0]
    elif split is not None:
        raise ValueError(f"{root!r} is a single dataset without splits, got split={split!r}. Leave it out.")
    state = names.get(f"{folder}state.json")
    if state is None:
        raise FileNotFoundError(f"{root}/{folder}state.json is missing.")
    shards = [f"{folder}{entry['filename']}" for entry in _load(state, "_data_files", options)]
    if missing := [name for name in shards if name not in names]:
        raise FileNotFoundError(f"{state.path} names {missing}, which are missing.")
    return HubFiles("arrow", [names[name].path for name in shards])


def _load(file: FileVersion, key: str, options: FileOptions) -> Any:
    with open_range(file, 0, None, options) as opened:
        content = opened.read()
    try:
        return json.loads(content)[key]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{file.path} is damaged: {type(error).__name__}: {error}.") from error


def _group(names: Sequence[str], of: Any) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(of(name), []).append(name)
    return groups


def _config_of(name: str) -> str:
    """The configuration of a file: its first folder, unless that is `data` or a split."""
    folder, is_below, _ = name.partition("/")
    return folder if is_below and folder not in _SKIPPED and _known_split(folder) is None else "default"


def _split_of(name: str) -> str:
    """The split of a file: what its name begins with, or a word in it or its folders; "train" if there is none."""
    shard = _SHARD.fullmatch(name.rpartition("/")[2])
    if shard is not None and shard[1]:
        return shard[1]
    return _known_split(name.removesuffix(".parquet")) or "train"


def _known_split(name: str) -> str | None:
    found = _SPLITS.findall(name)
    return _SAME.get(found[-1], found[-1]) if found else None


def _choose(what: str, wanted: str | None, groups: Mapping[str, list[str]], root: str) -> list[str]:
    if wanted is None and len(groups) == 1:
        return next(iter(groups.values()))
    if wanted is None or wanted not in groups:
        raise ValueError(f"{what} must be one of {sorted(groups)} of {root!r}, got {wanted!r}.")
    return groups[wanted]
