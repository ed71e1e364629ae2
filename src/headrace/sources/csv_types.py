"""Values of tables: what type a column has, and how a text becomes a value of it, exactly as pyarrow does it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

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
        ValueError: a text is no value of its column's type.
    """
    texts = zip(*rows, strict=True) if rows else ((),) * len(names)
    return {name: list(map(convert, column)) for name, column, convert in zip(names, texts, converters, strict=True)}


def _to_int(text: str) -> int:
    found = _INT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no int")
    digits = found[1]
    if digits[1:2] in ("x", "X"):
        value = int(digits, 16)
        return value - (1 << 64) if value >= 1 << 63 else value
    if not _has_64_bits(digits):
        raise ValueError(f"{digits[:80]} is no int of 64 bits")
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
        raise ValueError(f"{text!r} is no float")
    return float(found[1])


def _to_bool(text: str) -> bool:
    if text not in BOOLS:
        raise ValueError(f"{text!r} is no bool")
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
