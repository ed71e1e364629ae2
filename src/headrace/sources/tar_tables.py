"""Finds, among the members of an archive, samples that all have the same fields: those are read as a table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import eq
from typing import NamedTuple

from headrace.sources.tar_members import Members

# A name up to the first dot of its last part, and what follows; names stand between NULs, which none contains.
_KEY_AND_FIELD = re.compile(rb"\0((?:[^\0]*/)?[^\0/.]+)\.([^\0/]*)(?=\0)")
KEY_FIELD = b"__key__"
_FEWEST = 8  # samples, for which it is worth it


class Table(NamedTuple):
    """Samples that follow each other, all with the same fields.

    Attributes:
        members: of all samples, one after the other.
    """

    keys: list[bytes]
    fields: tuple[bytes, ...]
    members: Members

    def rest(self, first: int) -> Table:
        """Those from number `first` on."""
        members = self.members.part(first * len(self.fields), len(self.members.names))
        return Table(self.keys[first:], self.fields, members)


def split_off_table(members: Members) -> Iterator[Members | Table]:
    """The members in order, with a table in the middle if there is one.

    The first sample and the last are never in it, since they may have begun before, and may go on.
    """
    found = _table(members)
    if found is None:
        yield members
        return
    start, table = found
    yield members.part(0, start)
    yield table
    yield members.part(start + len(table.members.names), len(members.names))


def _table(members: Members) -> tuple[int, Table] | None:
    """The place where a table begins, and the table."""
    names = b"\0".join([b"", *members.names, b""])
    found = _KEY_AND_FIELD.findall(names)
    if len(found) != len(members.names) or len(found) < _FEWEST or b"\0__" in names:
        return None
    keys, suffixes = map(list, zip(*found, strict=True))
    start = _end_of_sample(keys, 0)
    n_fields = _end_of_sample(keys, start) - start
    n = (len(keys) - start - 1) // max(n_fields, 1)
    if n < _FEWEST:
        return None
    stop = start + n * n_fields
    fields = b"\0".join(suffixes[start:stop]).lower().split(b"\0")
    own_keys, own_fields = keys[start:stop:n_fields], fields[:n_fields]
    is_table = (
        fields == own_fields * n
        and len(set(own_fields)) == n_fields
        and KEY_FIELD not in own_fields  # which is passed over
        and all(keys[start + i : stop : n_fields] == own_keys for i in range(1, n_fields))
        and not any(map(eq, own_keys, keys[start + n_fields : stop + 1 : n_fields]))
    )
    return (start, Table(own_keys, tuple(own_fields), members.part(start, stop))) if is_table else None


def _end_of_sample(keys: list[bytes], start: int) -> int:
    """The place of the next key that is another one."""
    return next((i for i in range(start, len(keys)) if keys[i] != keys[start]), len(keys))
