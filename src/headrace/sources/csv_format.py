"""How tables are written as text: separators and quotes, the names and types of columns, the values."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

BOOLS = {
    "true": True,
    "True": True,
    "TRUE": True,
    "1": True,
    "false": False,
    "False": False,
    "FALSE": False,
    "0": False,
}
_NAMES: Mapping[Any, str] = {int: "int", float: "float", bool: "bool", str: "str"}
_INT = re.compile(r"[ \t]*(-?[0-9]+|0[xX][0-9a-fA-F]{1,16})[ \t]*")
_WHOLE = re.compile(r"[ \t]*([+-]?[0-9]+)[ \t]*")
_MOST_DIGITS = 19  # of an int of 64 bits
_FLOAT = re.compile(
    r"[ \t]*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[+-]?(?:inf|infinity|nan))[ \t]*",
    re.IGNORECASE | re.ASCII,
)
_FRACTION = re.compile(r"\.|[0-9][eE]")


def type_name(given: Any) -> str:
    """One of "int", "float", "bool" and "str", for such a name or Python type.

    Raises:
        ValueError: it is neither.
    """
    name = next((name for kind, name in _NAMES.items() if given is kind or given == name), None)
    if name is None:
        raise ValueError(f"A type must be one of {', '.join(map(repr, _NAMES.values()))}, got {given!r}.")
    return str(name)


def infer_type(values: Iterable[str], nulls: Collection[str]) -> str:
    """The first of int, float and bool that all values have which are not null, else str; str if there are none.

    Raises nothing: words other than true and false are text, and so are whole numbers if one of them has more than 64
    bits, of which a float would keep the first 53. Among numbers with a fraction or an exponent, it is a float as well.
    """
    known = [value for value in values if value not in nulls]
    if not known:
        return "str"
    found = next((name for name, fits in _INFERRED.items() if all(map(fits, known))), "str")
    if found == "float" and any(map(_is_too_large, known)) and not any(map(_FRACTION.search, known)):
        return "str"
    return found


def is_lossless_float(text: str) -> bool:
    """Whether a text is a float, and none of the whole numbers that a column of floats is not meant for."""
    return _FLOAT.fullmatch(text) is not None and not _is_too_large(text)


def converter(kind: str, nulls: Collection[str], text_nulls: Collection[str]) -> Callable[[str], Any]:
    """What makes values of a type out of texts, None of those that are null; it raises ValueError for others.

    Args:
        nulls: the texts that are null among numbers and bools.
        text_nulls: those that are null in a column of text.
    """
    if kind == "str":
        return (lambda text: None if text in text_nulls else text) if text_nulls else str
    convert = _CONVERTERS[kind]
    return lambda text: None if text in nulls else convert(text)


def convert_columns(
    rows: Sequence[Sequence[str]], names: Sequence[str], converters: Sequence[Callable[[str], Any]]
) -> dict[str, list[Any]]:
    """The columns of rows that all have as many fields as there are names.

    Raises:
        ValueError: a text cannot be converted to its column's type.
    """
    texts = zip(*rows, strict=True) if rows else ((),) * len(names)
    return {name: list(map(convert, column)) for name, column, convert in zip(names, texts, converters, strict=True)}


def _to_int(text: str) -> int:
    found = _INT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not an int")
    digits = found[1]
    if digits[1:2] in ("x", "X"):
        value = int(digits, 16)
        return value - (1 << 64) if value >= 1 << 63 else value
    if not _has_64_bits(digits):
        raise ValueError(f"{digits[:80]} is not a 64-bit int")
    return int(digits)


def _has_64_bits(digits: str) -> bool:
    # Python refuses to make an int of thousands of digits.
    return len(digits.lstrip("+-0")) <= _MOST_DIGITS and -(1 << 63) <= int(digits) < 1 << 63


def _is_too_large(text: str) -> bool:
    """Whether it is a whole number of more than 64 bits."""
    found = _WHOLE.fullmatch(text)
    return found is not None and not _has_64_bits(found[1])


def _to_float(text: str) -> float:
    found = _FLOAT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a float")
    return float(found[1])


def _to_bool(text: str) -> bool:
    if text not in BOOLS:
        raise ValueError(f"{text!r} is not a bool")
    return BOOLS[text]


def _is_decimal_int(text: str) -> bool:
    found = _INT.fullmatch(text)
    return found is not None and "x" not in text.lower() and _has_64_bits(found[1])


_CONVERTERS: Mapping[str, Callable[[str], Any]] = {"int": _to_int, "float": _to_float, "bool": _to_bool}
_INFERRED: Mapping[str, Callable[[str], bool]] = {
    "int": _is_decimal_int,
    "float": lambda text: _FLOAT.fullmatch(text) is not None,
    "bool": lambda text: text in BOOLS and not text.isdigit(),
}


class Records(Protocol):
    """A reader of Python's csv."""

    @property
    def line_num(self) -> int: ...

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


@dataclass(frozen=True)
class CsvFormat:
    """How a table is written.

    Attributes:
        separator: one ASCII character.
        quote: one ASCII character; None if quotes mean nothing.
        header: whether the first record of each file has the names of the columns.
        names: the names, instead of those in the header, if there is one. Without both, they are `f0`, `f1`, …
        types: for some columns, or for all: `int`, `float`, `bool` or `str`, or these as names. The others are found in
            the first records of the first file.
        nulls: the texts that mean null, in all columns. Without them, the empty text does in columns that are not
            of text.
        newlines_in_values: whether newlines may be in quotes. If so, files of more than one block must be read once
            to find where their records begin; False spares that.

    Raises:
        ValueError: an attribute is not like that.
        TypeError: `types` is not a mapping.
    """

    separator: str = ","
    quote: str | None = '"'
    header: bool = True
    names: Sequence[str] | None = None
    types: Mapping[str, Any] | None = None
    nulls: Collection[str] | None = None
    newlines_in_values: bool = True

    def __post_init__(self) -> None:
        for name, character in (("separator", self.separator), ("quote", self.quote)):
            if character is not None and (len(character) != 1 or not character.isascii() or character in "\r\n"):
                raise ValueError(f"{name} must be one ASCII character and no newline, got {character!r}.")
        if self.separator == self.quote:
            raise ValueError(f"separator and quote must differ, got {self.quote!r} for both.")
        _check_types(self.types)
        _check_texts("names", self.names)
        _check_texts("nulls", self.nulls)

    @property
    def has_quoted_newlines(self) -> bool:
        return self.newlines_in_values and self.quote is not None

    @property
    def null_texts(self) -> frozenset[str]:
        return frozenset(("",) if self.nulls is None else self.nulls)

    def records(self, lines: Sequence[str], longest: int) -> Records:
        """The records of some lines, which keep their newlines.

        Args:
            longest: no field has more characters.
        """
        # Python's limit is one for the whole process, and much lower than what a record may be: it is only ever raised.
        csv.field_size_limit(max(csv.field_size_limit(), longest))
        if self.quote is None:
            return csv.reader(lines, delimiter=self.separator, quoting=csv.QUOTE_NONE)
        return csv.reader(lines, delimiter=self.separator, quotechar=self.quote)


@dataclass(frozen=True, slots=True)
class CsvSchema:
    """The columns of a table: their names, and the type of each."""

    names: tuple[str, ...]
    types: Mapping[str, str]


def _check_types(types: Any) -> None:
    if types is None:
        return
    if not isinstance(types, Mapping):
        raise TypeError(f"types must be a mapping of columns to types, such as {{'id': 'int'}}, got {types!r:.80}.")
    for given in types.values():
        type_name(given)


def _check_texts(name: str, given: Any) -> None:
    if given is None:
        return
    is_list = isinstance(given, Collection) and not isinstance(given, (str, bytes))
    if not is_list or not all(isinstance(text, str) for text in given):
        raise ValueError(f"{name} must be a list of strings, got {given!r:.80}.")


def split_lines(text: str) -> list[str]:
    """The lines of a text with their newlines, which are LF, CRLF or CR."""
    return list(io.StringIO(text, newline=""))


def take_header(content: bytes, table: CsvFormat, encoding: str, longest: int) -> tuple[list[str], int]:
    """The fields of the first record, and how many bytes it takes with the empty lines before it."""
    lines = split_lines(content.decode(encoding, "surrogateescape"))
    reader = table.records(lines, longest)
    header = next((row for row in reader if row), [])
    return header, len("".join(lines[: reader.line_num]).encode(encoding, "surrogateescape"))


def find_schema(header: Sequence[str], rows: Sequence[Sequence[str]], table: CsvFormat) -> CsvSchema:
    """The columns of a table.

    Args:
        header: the names, unless `table` has them.
        rows: some records; those with another number of fields than there are columns do not count.

    Raises:
        ValueError: two columns have the same name, or a type is given for one that is not there.
    """
    names = tuple(header if table.names is None else table.names)
    doubles = sorted(name for name, count in Counter(names).items() if count > 1)
    if doubles:
        raise ValueError(
            f"Each column must have a name of its own, got {', '.join(map(repr, doubles))} twice. Pass names."
        )
    given = {name: type_name(kind) for name, kind in (table.types or {}).items()}
    known = set(names)
    unknown = [name for name in given if name not in known]
    if unknown and names:
        raise ValueError(f"types must be for columns of the table, got {unknown}; it has {list(names)}.")
    samples = zip(*(row for row in rows if len(row) == len(names)), strict=True)
    columns = dict(zip(names, samples, strict=False))
    nulls = table.null_texts
    return CsvSchema(names, {name: given.get(name) or infer_type(columns.get(name, ()), nulls) for name in names})


def numbered_names(n: int) -> list[str]:
    return [f"f{i}" for i in range(n)]


_Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class QuotedRecordEnds:
    """Finds where the records of a table end: at newlines that are not in quotes.

    A field is quoted if a quote is its first character; it ends at the next quote that is not doubled. Quotes anywhere
    else mean nothing. So Python's csv and pyarrow read tables too.

    Args:
        separator: one byte.
        quote: one byte.
    """

    separator: bytes
    quote: bytes
    unit_bytes: int = 1

    def last(self, buffer: bytes) -> int:
        newline = buffer.rfind(b"\n")
        if newline < 0 or self.quote not in buffer:
            return newline + 1
        opens, closes = self.find_quoted(buffer)
        while newline >= 0 and (opening := _opening_around(opens, closes, newline)) is not None:
            newline = buffer.rfind(b"\n", 0, opening)
        return newline + 1

    def first_after(self, buffer: bytes, place: int) -> int:
        if self.quote not in buffer:
            return buffer.find(b"\n", place) + 1
        opens, closes = self.find_quoted(buffer)
        newline = buffer.find(b"\n", place)
        while newline >= 0 and _opening_around(opens, closes, newline) is not None:
            closing = int(np.searchsorted(closes, newline))
            newline = buffer.find(b"\n", int(closes[closing])) if closing < len(closes) else -1
        return newline + 1

    def after_damage(self, buffer: bytes) -> int:
        """Behind the first line: a quote in it is one that should not be there."""
        return buffer.find(b"\n") + 1

    def ends_in_quotes(self, buffer: bytes) -> bool:
        """Whether a quoted field has not ended at the end of the buffer."""
        opens, closes = self.find_quoted(buffer)
        return len(opens) > len(closes)

    def find_quoted(self, buffer: bytes) -> tuple[_Places, _Places]:
        """Where quoted parts open and close, in order; the last one may not close. A doubled quote closes and opens.

        Where all quotes are where they should be, every second one opens, which NumPy can see at once.
        """
        content = np.frombuffer(buffer, np.uint8)
        quotes = np.flatnonzero(content == self.quote[0])
        opens, closes = quotes[::2], quotes[1::2]
        if self._open_fields(content, opens, closes) and self._close_fields(content, opens, closes):
            return opens, closes
        return self._walk(buffer)

    def _open_fields(self, content: npt.NDArray[np.uint8], opens: _Places, closes: _Places) -> bool:
        """Whether these quotes are at the beginning of a field, or just behind one that closes."""
        before = content[opens - 1]  # for the first byte, that is the last one: it is let through below
        starts = _is_any(before, self.separator + b"\r\n") | (opens == 0)
        starts[1:] |= opens[1:] == closes[: len(opens) - 1] + 1
        return bool(starts.all())

    def _close_fields(self, content: npt.NDArray[np.uint8], opens: _Places, closes: _Places) -> bool:
        """Whether these quotes are at the end of a field, or just before one that opens."""
        behind = np.minimum(closes + 1, len(content) - 1)
        ends = _is_any(content[behind], self.separator + b"\r\n") | (closes == len(content) - 1)
        ends[: len(opens) - 1] |= opens[1:] == closes[: len(opens) - 1] + 1
        return bool(ends.all())

    def _walk(self, buffer: bytes) -> tuple[_Places, _Places]:
        """The same, one quoted field after the other."""
        opening = re.compile(b"(?:^|[" + re.escape(self.separator) + b"\r\n])" + re.escape(self.quote))
        opens: list[int] = []
        closes: list[int] = []
        place = 0
        while found := opening.search(buffer, place):
            opens.append(found.end() - 1)
            end = self._find_closing(buffer, found.end())
            if end < 0:
                break
            closes.append(end)
            place = end + 1
        return np.array(opens, np.intp), np.array(closes, np.intp)

    def _find_closing(self, buffer: bytes, place: int) -> int:
        while (place := buffer.find(self.quote, place)) >= 0 and buffer[place + 1 : place + 2] == self.quote:
            place += 2
        return place


def _is_any(content: npt.NDArray[np.uint8], characters: bytes) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = content == characters[0]
    for character in characters[1:]:
        found |= content == character
    return found


def _opening_around(opens: _Places, closes: _Places, place: int) -> int | None:
    """Where the quoted part begins that `place` lies in, if it lies in one."""
    i = int(np.searchsorted(opens, place)) - 1
    if i < 0 or (i < len(closes) and closes[i] < place):
        return None
    return int(opens[i])
