"""Groups the members of an archive into samples, by WebDataset's naming: `folder/0001.jpg`, `folder/0001.cls`, ….

The key of a sample is the name up to the first dot of its last part; what follows, in lower case, is the field. Members
of one key that follow each other are one sample. Names without a dot, hidden files, `__metadata__` and fields called
`__key__` are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import eq
from typing import NamedTuple

from headrace.sources.tar_archive import ArchiveWindow, DamagedArchiveError, Members, walk

# A name up to the first dot of its last part, and what follows; names are separated by NULs, which none contains.
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
        and KEY_FIELD not in own_fields  # which is skipped
        and all(keys[start + i : stop : n_fields] == own_keys for i in range(1, n_fields))
        and not any(map(eq, own_keys, keys[start + n_fields : stop + 1 : n_fields]))
    )
    return (start, Table(own_keys, tuple(own_fields), members.part(start, stop))) if is_table else None


def _end_of_sample(keys: list[bytes], start: int) -> int:
    """The place of the next key that is another one."""
    return next((i for i in range(start, len(keys)) if keys[i] != keys[start]), len(keys))


class Piece(NamedTuple):
    """Some consecutive samples: the bytes [start, stop), to the end if None, and how many samples there are."""

    start: int
    stop: int | None
    n_samples: int


class RawSamples(NamedTuple):
    """The contents of samples that follow each other, all with the same fields.

    Attributes:
        starts: where the first header of each begins.
        columns: the contents of each field.
        n_bytes: how long all contents are together.
        problem: why the sample cannot be used, if it cannot; then it comes alone.
        found: what to show of it then.
    """

    keys: list[bytes]
    starts: list[int]
    fields: tuple[bytes, ...]
    columns: list[list[bytes]]
    n_bytes: int
    problem: str | None = None
    found: bytes = b""


def find_key(name: bytes) -> bytes | None:
    """The key of the sample that a member belongs to; None if it belongs to none."""
    base = name.rfind(b"/") + 1
    dot = name.find(b".", base)
    if dot <= base or (name[-2:] == b"__" and _is_reserved(name, base, dot)):
        return None
    return name[:dot]


def _is_reserved(name: bytes, base: int, dot: int) -> bool:
    """Whether a name is that of something about the archive, or its field is what the key of a sample is called."""
    return (not base and name[:2] == b"__") or name[dot + 1 :].lower() == KEY_FIELD


def as_text(name: bytes) -> str:
    """A name as text; bytes that cannot be decoded become surrogates."""
    return name.decode("utf-8", "surrogateescape")


def cut_archive(window: ArchiveWindow, block_bytes: int) -> list[Piece]:
    """Cut an archive into pieces of about `block_bytes`, at borders of samples; reads headers only.

    Damage is not an error here: reading the last piece meets it again and reports it. An archive without samples has no
    pieces.
    """
    pieces: list[Piece] = []
    last_key, piece_start, n_samples = None, 0, 0
    is_damaged = False
    try:
        for members in walk(window):
            for name, start in zip(members.names, members.starts, strict=True):
                key = find_key(name)
                if key is None or key == last_key:
                    continue
                last_key = key
                if start - piece_start >= block_bytes and n_samples:
                    pieces.append(Piece(piece_start, start, n_samples))
                    piece_start, n_samples = start, 0
                n_samples += 1
    except DamagedArchiveError:
        is_damaged, n_samples = True, max(n_samples - 1, 0)  # the last one is not whole
    return [*pieces, Piece(piece_start, None, n_samples)] if n_samples or is_damaged else []


def read_samples(window: ArchiveWindow, piece: Piece, first: int, most_bytes: int) -> Iterator[RawSamples]:
    """The samples of a piece from number `first` on; the contents of those before are skipped.

    One that is wrong in some way, or has more than `most_bytes`, comes with a problem. So does the last one of a
    damaged archive, even if it lies before `first`.
    """
    grouping = _Grouping(window, piece.start, first, most_bytes)
    try:
        for members in walk(window, piece.start, piece.stop):
            for part in split_off_table(members):
                yield from grouping.add_table(part) if isinstance(part, Table) else grouping.add(part)
    except DamagedArchiveError as error:
        yield grouping.sample.close()._replace(problem=str(error), found=error.found)
        return
    yield from grouping.end()


class _Grouping:
    """Puts members together to samples, one after the other.

    Attributes:
        sample: the one that the next member may belong to.
    """

    def __init__(self, window: ArchiveWindow, start: int, first: int, most_bytes: int) -> None:
        self.sample = _OpenSample(b"", start, is_wanted=False)
        self._window = window
        self._first = first
        self._most_bytes = most_bytes
        self._n_begun = 0

    def add(self, members: Members) -> Iterator[RawSamples]:
        sample = self.sample
        for name, start, data, size in zip(*members[:4], strict=True):
            key = find_key(name)
            if key is None:
                continue
            if key != sample.key:
                yield from self.end()
                self._n_begun += 1
                self.sample = sample = _OpenSample(key, start, is_wanted=self._n_begun > self._first)
            if sample.is_wanted:
                sample.add(self._window, name, data, size, members.is_sparse, self._most_bytes)

    def add_table(self, table: Table) -> Iterator[RawSamples]:
        if sum(table.members.sizes) > self._most_bytes:  # some of the samples may have more, too
            yield from self.add(table.members)
            return
        yield from self.end()
        unwanted = max(0, self._first - self._n_begun)
        self._n_begun += len(table.keys)
        self.sample = _OpenSample(b"", table.members.starts[-1], is_wanted=False)
        if unwanted < len(table.keys):
            yield _read_table(self._window, table.rest(unwanted))

    def end(self) -> Iterator[RawSamples]:
        if self.sample.is_wanted:
            yield self.sample.close()


class _OpenSample:
    """A sample that more members may belong to."""

    def __init__(self, key: bytes, start: int, *, is_wanted: bool) -> None:
        self.key = key
        self.is_wanted = is_wanted
        self._start = start
        self._contents: dict[bytes, bytes] = {}
        self._n_bytes = 0
        self._problem: str | None = None

    def add(self, window: ArchiveWindow, name: bytes, data: int, size: int, is_sparse: bool, most_bytes: int) -> None:
        """Read a member, unless there is a problem.

        Raises:
            DamagedArchiveError: the archive ends before the member does.
        """
        field = name[len(self.key) + 1 :].lower()
        self._n_bytes += size
        if is_sparse or field in self._contents or self._n_bytes > most_bytes:
            self._problem = self._problem or _problem(name, is_sparse, field in self._contents, most_bytes)
            return
        self._contents[field] = content = window.get(data, size)
        if len(content) < size:
            message = f"the archive ends at byte {data + len(content)}, in the middle of a member"
            raise DamagedArchiveError(message, content)

    def close(self) -> RawSamples:
        columns = [[content] for content in self._contents.values()]
        found = columns[0][0] if self._problem and columns else b""
        fields = tuple(self._contents)
        return RawSamples([self.key], [self._start], fields, columns, self._n_bytes, self._problem, found)


def _read_table(window: ArchiveWindow, table: Table) -> RawSamples:
    _, starts, datas, sizes, _ = table.members
    memory, offset = window.hold(datas[0], 0)
    begin = datas[0] - offset
    contents = [memory[data - begin : data - begin + size] for data, size in zip(datas, sizes, strict=True)]
    n = len(table.fields)
    return RawSamples(table.keys, starts[::n], table.fields, [contents[i::n] for i in range(n)], sum(sizes))


def _problem(name: bytes, is_sparse: bool, is_double: bool, most_bytes: int) -> str:
    if is_sparse:
        return f"the member {as_text(name)!r} is sparse, which is not supported"
    if is_double:
        return f"the member {as_text(name)!r} comes twice"
    return f"it has more than {most_bytes} bytes; pass a larger `max_record_bytes` to read it"
