"""`tf.train.Example` messages as columns, without TensorFlow: all records of a chunk, one field at a time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Places: TypeAlias = npt.NDArray[np.int64]
Bad: TypeAlias = Callable[[int, str], None]
"""Called with the number of a bad record, and what is wrong with it."""

_BYTES, _FLOATS, _INTS = 0x0A, 0x12, 0x1A  # the tags of the kinds of a feature
_FIRST, _SECOND, _SINGLE_FLOAT, _SINGLE_INT = 0x0A, 0x12, 0x0D, 0x08
_KINDS = {_BYTES: "bytes", _FLOATS: "float", _INTS: "int"}
_PADDING = bytes(16)  # so that what is read behind the end of a damaged record is there
_MOST_VARINT_BYTES = 10
_FLOAT = np.dtype("<f4")


class Feature(NamedTuple):
    """What a feature must be.

    Attributes:
        kind: the tag of its list; None for any.
        is_one: whether it has exactly one value, which is then not in a list; None for bytes that may be either.
        is_text: whether its bytes are UTF-8.
    """

    kind: int | None
    is_one: bool | None
    is_text: bool = False


_ANY = Feature(None, None)
_TYPES = {int: Feature(_INTS, True), float: Feature(_FLOATS, True), bytes: Feature(_BYTES, True)}
_TYPES[str] = Feature(_BYTES, True, True)


def check_features(features: Mapping[str, Any] | None) -> dict[str, Feature] | None:
    """What users say of features: `int`, `float`, `bytes` or `str` for one value, `[int]` for any number of them.

    Raises:
        TypeError: they say something else.
    """
    if features is None:
        return None
    if not isinstance(features, Mapping):
        raise TypeError(f"features must be a dict of types by name, such as {{'label': int}}, got {features!r:.80}.")
    return {name: _check_feature(name, kind) for name, kind in features.items()}


def _check_feature(name: str, kind: Any) -> Feature:
    one = kind[0] if isinstance(kind, list) and len(kind) == 1 else kind
    if not isinstance(one, type) or one not in _TYPES:
        raise TypeError(
            f"The type of the feature {name!r} must be int, float, bytes, str or a list of one, got {kind!r}."
        )
    return _TYPES[one] if one is kind else _TYPES[one]._replace(is_one=False)


class _Values(NamedTuple):
    """Where the values of one feature are: in which records, of which kind, and where the list begins and ends."""

    records: Places
    kinds: Places
    begins: Places
    ends: Places


def parse_examples(
    content: bytes, begins: Places, ends: Places, features: Mapping[str, Feature] | None, on_bad: Bad
) -> tuple[dict[str, Any], Places, bool]:
    """The features of some records.

    Args:
        features: what to read; all if None.

    Returns:
        Columns, the numbers of the records that they have, and whether every feature is in every record. If not, a
        column is a dict of values by record.
    """
    padded = content + _PADDING
    found, odd = _walk(np.frombuffer(padded, np.uint8), padded, begins, ends)
    bad: dict[int, str] = {}
    columns: dict[str, dict[int, Any] | Any] = {}
    n = len(begins)
    is_even = not len(odd) and all(sum(len(v.records) for v in parts) == n for parts in found.values())
    by_name = {key.decode("utf-8", "replace"): _joined(parts) for key, parts in found.items()}
    slow = {i: _try_slowly(content, int(begins[i]), int(ends[i]), bad, i) for i in odd.tolist()}
    names = list(dict.fromkeys([*by_name, *(name for one in slow.values() for name in one)]))
    for name in names if features is None else features:
        feature = _ANY if features is None else features[name]
        column = _column(padded, name, by_name[name], feature, bad) if name in by_name else {}
        for i, values in slow.items():
            if name in values:
                column[i] = _finish(name, *values[name], feature, bad, i)
        columns[name] = column
    if features is not None:
        _note_missing(columns, features, n, bad)
        is_even = True
    for i, problem in sorted(bad.items()):
        on_bad(i, problem)
    kept = np.array([i for i in range(n) if i not in bad], np.int64) if bad else np.arange(n)
    if is_even:
        columns = {name: _as_column(column, kept, (features or {}).get(name, _ANY)) for name, column in columns.items()}
    return columns, kept, is_even


def _walk(memory: Any, padded: bytes, begins: Places, ends: Places) -> tuple[dict[bytes, list[_Values]], Places]:
    """The lists of all features, by key; and the records that are not written in the usual way."""
    records = np.arange(len(begins))
    size, place = _varints(memory, begins + 1)
    is_usual = (memory[begins] == _FIRST) & (place + size == ends)
    odd = [records[~is_usual]]
    found: dict[bytes, list[_Values]] = {}
    records, place = records[is_usual], place[is_usual]
    while True:
        is_open = place < ends[records]
        records, place = records[is_open], place[is_open]
        if not len(records):
            break
        size, entry = _varints(memory, place + 1)
        end = entry + size
        is_usual = (memory[place] == _FIRST) & (end <= ends[records])
        key_size, key = _varints(memory, np.where(is_usual, entry + 1, 0))
        value = key + key_size
        is_usual &= (memory[np.where(is_usual, entry, 0)] == _FIRST) & (value < end)
        size, feature = _varints(memory, np.where(is_usual, value + 1, 0))
        is_usual &= (memory[np.where(is_usual, value, 0)] == _SECOND) & (feature + size == end) & (size > 0)
        safe = np.where(is_usual, feature, 0)
        size, listed = _varints(memory, safe + 1)
        kind = memory[safe]
        is_usual &= (listed + size == end) & ((kind == _BYTES) | (kind == _FLOATS) | (kind == _INTS))
        if not is_usual.all():
            odd.append(records[~is_usual])
            records, key, value, kind, listed, end = (
                each[is_usual] for each in (records, key, value, kind, listed, end)
            )
        for name, places in _by_key(memory, padded, key, value):
            own = (records, kind, listed, end)
            found.setdefault(name, []).append(_Values(*(own if places is None else [each[places] for each in own])))
        place = end
    left_out = np.unique(np.concatenate(odd))
    doubled = _doubled(found)
    left_out = np.union1d(left_out, doubled) if len(doubled) else left_out
    if len(left_out):
        found = {key: [_without(part, left_out) for part in parts] for key, parts in found.items()}
    return {key: parts for key, parts in found.items() if any(len(part.records) for part in parts)}, left_out


def _varints(memory: Any, places: Places) -> tuple[Places, Places]:
    """A number at each place, and where what follows it begins."""
    byte = memory[np.minimum(places, len(memory) - 1)]
    value = (byte & 0x7F).astype(np.int64)
    after = places + 1
    more = np.flatnonzero(byte >= 0x80)
    shift = 7
    while len(more) and shift < 7 * 8:
        byte = memory[np.minimum(after[more], len(memory) - 1)]
        value[more] |= (byte & 0x7F).astype(np.int64) << shift
        after[more] += 1
        more = more[byte >= 0x80]
        shift += 7
    return value, after


def _by_key(memory: Any, padded: bytes, begins: Places, ends: Places) -> Iterator[tuple[bytes, Any]]:
    """The different keys, and which of the records have each; None for all."""
    if not len(begins):
        return
    size = int(ends[0] - begins[0])
    if (ends - begins == size).all():
        keys = memory[begins[:, None] + np.arange(size)]
        if (keys == keys[0]).all():
            yield keys[0].tobytes(), None
            return
    groups: dict[bytes, list[int]] = {}
    for i, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        groups.setdefault(padded[begin:end], []).append(i)
    yield from ((name, np.array(group)) for name, group in groups.items())


def _doubled(found: Mapping[bytes, Sequence[_Values]]) -> Places:
    """The records that have a key more than once."""
    doubled = [np.array([], np.int64)]
    for parts in found.values():
        if len(parts) > 1:
            numbers, counts = np.unique(np.concatenate([part.records for part in parts]), return_counts=True)
            doubled.append(numbers[counts > 1])
    return np.concatenate(doubled)


def _without(part: _Values, records: Places) -> _Values:
    kept = ~np.isin(part.records, records)
    return _Values(*(each[kept] for each in part))


def _joined(parts: Sequence[_Values]) -> _Values:
    return parts[0] if len(parts) == 1 else _Values(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _column(padded: bytes, name: str, values: _Values, feature: Feature, bad: dict[int, str]) -> dict[int, Any]:
    """The values of a feature by record."""
    column: dict[int, Any] = {}
    for kind in np.unique(values.kinds).tolist():
        mine = values.kinds == kind
        records, begins, ends = values.records[mine], values.begins[mine], values.ends[mine]
        if feature.kind not in (None, kind):
            for i in records.tolist():
                bad[i] = f"the feature {name!r} must be {_KINDS[feature.kind or 0]}, but is {_KINDS[kind]}"
            continue
        memory = np.frombuffer(padded, np.uint8)
        size, begin = _varints(memory, begins + 1)
        # Numbers are packed into one field, and bytes are one value, as a rule.
        is_usual = (begins < ends) & (memory[begins] == _FIRST) & (begin + size == ends)
        for i, start, end in zip(
            records[~is_usual].tolist(), begins[~is_usual].tolist(), ends[~is_usual].tolist(), strict=True
        ):
            try:
                listed = _parse_list(padded[:end], start, kind)
            except (ValueError, IndexError, struct.error) as error:
                bad[i] = f"the feature {name!r} is damaged: {error}"
            else:
                column[i] = _finish(name, kind, listed, feature, bad, i)
        records, begin, ends = records[is_usual], begin[is_usual], ends[is_usual]
        parts = [padded[a:b] for a, b in zip(begin.tolist(), ends.tolist(), strict=True)]
        column.update(_usual_values(name, kind, records.tolist(), parts, feature, bad))
    return column


def _usual_values(
    name: str, kind: int, records: list[int], parts: list[bytes], feature: Feature, bad: dict[int, str]
) -> Iterator[tuple[int, Any]]:
    if kind == _BYTES:
        if feature.is_text or feature.is_one is False:
            return ((i, _finish(name, kind, [part], feature, bad, i)) for i, part in zip(records, parts, strict=True))
        return zip(records, parts, strict=True)
    is_whole = _ends_with_float if kind == _FLOATS else _ends_with_int
    if not all(map(is_whole, parts)):
        whole = [(i, part) for i, part in zip(records, parts, strict=True) if is_whole(part)]
        bad.update(dict.fromkeys(set(records) - {i for i, _ in whole}, f"the feature {name!r} ends within a number"))
        records, parts = [i for i, _ in whole], [part for _, part in whole]
    numbers, ends = _join_numbers(kind, parts)
    if feature.is_one:
        counts = np.diff(ends, prepend=0)
        for j in np.flatnonzero(counts != 1).tolist():
            bad[records[j]] = f"the feature {name!r} must have 1 value, but has {counts[j]}"
        kept = np.flatnonzero(counts == 1)
        return zip(np.array(records, np.int64)[kept].tolist(), numbers[ends[kept] - 1].tolist(), strict=True)
    borders = [0, *ends.tolist()]
    return ((i, numbers[borders[j] : borders[j + 1]]) for j, i in enumerate(records))


def _ends_with_float(part: bytes) -> bool:
    return len(part) % _FLOAT.itemsize == 0


def _ends_with_int(part: bytes) -> bool:
    return not part or part[-1] < 0x80


def _join_numbers(kind: int, parts: Sequence[bytes]) -> tuple[npt.NDArray[Any], Places]:
    """The numbers of all lists, one after the other, and where each list ends among them."""
    joined, sizes = b"".join(parts), np.fromiter(map(len, parts), np.int64, len(parts))
    if kind == _FLOATS:
        return np.frombuffer(joined, _FLOAT).astype(np.float32), np.cumsum(sizes // _FLOAT.itemsize)
    numbers, is_last = decode_varints(joined)
    return numbers, np.cumsum(np.append(0, is_last))[np.cumsum(sizes)]


def decode_varints(content: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The numbers that some bytes are, and which of the bytes end one.

    Raises:
        ValueError: a number is too long.
    """
    memory = np.frombuffer(content, np.uint8)
    is_last = memory < 0x80
    if is_last.all():
        return memory.astype(np.int64), is_last
    lasts = np.flatnonzero(is_last)
    firsts = np.append(0, lasts[:-1] + 1) if len(lasts) else lasts
    lengths = lasts - firsts + 1
    longest = int(lengths.max(initial=0))
    if longest > _MOST_VARINT_BYTES:
        raise ValueError("a number has more than ten bytes")
    values = np.zeros(len(lasts), np.uint64)
    for i in range(longest):
        has = lengths > i
        values[has] |= (memory[firsts[has] + i] & np.uint64(0x7F)).astype(np.uint64) << np.uint64(7 * i)
    return values.view(np.int64), is_last


def _note_missing(columns: Mapping[str, Any], features: Mapping[str, Feature], n: int, bad: dict[int, str]) -> None:
    for name, feature in features.items():
        column = columns[name]
        if len(column) == n:
            continue
        for i in range(n):
            if i not in column and i not in bad:
                if feature.is_one:
                    bad[i] = f"it has no feature {name!r}"
                else:
                    column[i] = _finish(name, feature.kind or _BYTES, [], feature, bad, i)


def _as_column(column: dict[int, Any], kept: Places, feature: Feature) -> Any:
    values = [column[i] for i in kept.tolist()]
    if feature.is_one and feature.kind in (_INTS, _FLOATS):
        return np.array(values, np.int64 if feature.kind == _INTS else np.float32)
    return values


# One record at a time, for those that are written in another way than usual.


def _try_slowly(content: bytes, begin: int, end: int, bad: dict[int, str], i: int) -> dict[str, tuple[int, list[Any]]]:
    try:
        return _parse_slowly(content, begin, end)
    except (ValueError, IndexError, struct.error) as error:
        bad[i] = f"it is no tf.train.Example: {error}"
        return {}


def _parse_slowly(content: bytes, begin: int, end: int) -> dict[str, tuple[int, list[Any]]]:
    found: dict[str, tuple[int, list[Any]]] = {}
    for tag, start, stop in _fields(content, begin, end):
        if tag != _FIRST:
            continue
        for entry, first, last in _fields(content, start, stop):
            if entry == _FIRST:
                name, kind, values = _parse_entry(content, first, last)
                found[name] = kind, values
    return found


def _parse_entry(content: bytes, begin: int, end: int) -> tuple[str, int, list[Any]]:
    name, kind = "", _BYTES
    values: list[Any] = []
    for tag, start, stop in _fields(content, begin, end):
        if tag == _FIRST:
            name = content[start:stop].decode("utf-8", "replace")
        elif tag == _SECOND:
            kind, values = _BYTES, []
            for own, first, last in _fields(content, start, stop):
                if own in _KINDS:
                    values = values if own == kind else []
                    kind = own
                    values += _parse_list(content[:last], first, own)
    return name, kind, values


def _parse_list(content: bytes, begin: int, kind: int) -> list[Any]:
    values: list[Any] = []
    for tag, start, stop in _fields(content, begin, len(content)):
        part = content[start:stop]
        if kind == _BYTES and tag == _FIRST:
            values.append(part)
        elif kind == _FLOATS and tag in (_FIRST, _SINGLE_FLOAT):
            values += struct.unpack(f"<{len(part) // 4}f", part)
        elif kind == _INTS and tag in (_FIRST, _SINGLE_INT):
            numbers, is_last = decode_varints(part)
            if len(part) and not is_last[-1]:
                raise ValueError("a list of ints ends within one")
            values += numbers.tolist()
    return values


def _fields(content: bytes, place: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The tags of a message's fields, and where their values begin and end."""
    while place < end:
        tag, start = _varint(content, place, end)
        match tag & 7:
            case 0:
                _, stop = _varint(content, start, end)
            case 1:
                stop = start + 8
            case 2:
                size, start = _varint(content, start, end)
                stop = start + size
            case 5:
                stop = start + 4
            case other:
                raise ValueError(f"there is no wire type {other}")
        if stop > end:
            raise ValueError("a field ends behind its message")
        yield tag, start, stop
        place = stop


def _varint(content: bytes, place: int, end: int) -> tuple[int, int]:
    value = 0
    for i in range(_MOST_VARINT_BYTES):
        if place + i >= end:
            raise ValueError("it ends within a number")
        byte = content[place + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, place + i + 1
    raise ValueError("a number has more than ten bytes")


def _finish(name: str, kind: int, values: list[Any], feature: Feature, bad: dict[int, str], i: int) -> Any:
    """The values of one feature of one record, as users get them."""
    if feature.kind not in (None, kind) and values:
        bad[i] = f"the feature {name!r} must be {_KINDS[feature.kind or 0]}, but is {_KINDS[kind]}"
        return None
    if feature.is_text:
        try:
            values = [value.decode() for value in values]
        except UnicodeDecodeError as error:
            bad[i] = f"the feature {name!r} is no UTF-8: {error}"
            return None
    if feature.is_one and len(values) != 1:
        bad[i] = f"the feature {name!r} must have 1 value, but has {len(values)}"
        return None
    if feature.is_one or (feature.is_one is None and kind == _BYTES and len(values) == 1):
        return values[0]
    if (kind if feature.kind is None else feature.kind) == _BYTES:
        return values
    return np.array(values, np.float32 if kind == _FLOATS or feature.kind == _FLOATS else np.int64)
