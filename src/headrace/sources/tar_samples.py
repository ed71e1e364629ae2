"""Groups the members of an archive into samples, by WebDataset's naming: `folder/0001.jpg`, `folder/0001.cls`, ….

The key of a sample is the name up to the first dot of its last part; what follows, in lower case, is the field. Members
of one key that follow each other are one sample. Names without a dot, hidden files and `__metadata__` are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.sources.tar_members import walk
from headrace.sources.tar_window import ArchiveWindow, DamagedArchiveError


class Piece(NamedTuple):
    """Some consecutive samples: the bytes [start, stop), to the end if None, and how many samples there are."""

    start: int
    stop: int | None
    n_samples: int


class RawSample(NamedTuple):
    """The members of a sample.

    Attributes:
        start: where its first header begins.
        contents: by field.
        n_bytes: how long all contents are together.
        problem: why it cannot be used, if it cannot.
    """

    key: bytes
    start: int
    contents: dict[bytes, bytes]
    n_bytes: int
    problem: str | None


def find_key(name: bytes) -> bytes | None:
    """The key of the sample that a member belongs to; None if it belongs to none."""
    base = name.rfind(b"/") + 1
    dot = name.find(b".", base)
    if dot <= base or (not base and name[:2] == name[-2:] == b"__"):
        return None
    return name[:dot]


def cut_archive(window: ArchiveWindow, block_bytes: int) -> list[Piece]:
    """Cut an archive into pieces of about `block_bytes`, at borders of samples; reads headers only.

    Damage is no error here: it is met again, and told, when the last piece is read. An archive without samples has no
    pieces.
    """
    pieces: list[Piece] = []
    last_key, piece_start, n_samples = None, 0, 0
    is_damaged = False
    try:
        for name, start, _, _, _ in walk(window):
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


def read_samples(window: ArchiveWindow, piece: Piece, first: int, most_bytes: int) -> Iterator[RawSample]:
    """The samples of a piece from number `first` on; the contents of those before are passed over.

    One that is wrong in some way, or has more than `most_bytes`, comes with a problem. So does the last one of a
    damaged archive, even if it lies before `first`.
    """
    contents: dict[bytes, bytes] = {}
    problem: str | None = None
    last_key, sample_start, n_bytes = b"", piece.start, 0
    n_begun = 0
    memory, begin = b"", 0  # what was read last, and where it begins
    try:
        for name, start, data, size, is_sparse in walk(window, piece.start, piece.stop):
            key = find_key(name)
            if key is None:
                continue
            if key != last_key:
                if n_begun > first:
                    yield RawSample(last_key, sample_start, contents, n_bytes, problem)
                last_key, sample_start, contents, n_bytes, problem = key, start, {}, 0, None
                n_begun += 1
            if n_begun <= first:
                continue
            suffix = name[len(key) + 1 :].lower()
            n_bytes += size
            if is_sparse or suffix in contents or n_bytes > most_bytes:
                problem = problem or _problem(name, is_sparse, suffix in contents, most_bytes)
                continue
            if data + size > begin + len(memory):
                memory, offset = window.hold(data, size)
                begin = data - offset
            contents[suffix] = content = memory[data - begin : data - begin + size]
            if len(content) < size:
                raise DamagedArchiveError(f"the archive ends at byte {data + len(content)}, in the middle of a member")
    except DamagedArchiveError as error:
        yield RawSample(last_key, sample_start, contents, n_bytes, str(error))
        return
    if n_begun > first:
        yield RawSample(last_key, sample_start, contents, n_bytes, problem)


def _problem(name: bytes, is_sparse: bool, is_double: bool, most_bytes: int) -> str:
    if is_sparse:
        return f"the member {name!r} is sparse, which is not supported"
    if is_double:
        return f"the member {name!r} comes twice"
    return f"it has more than {most_bytes} bytes; pass a larger `max_record_bytes` to read it"
