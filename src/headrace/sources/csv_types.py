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
_FLOAT = re.compile(
    r"[ \t]*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[+-]?(?:inf|infinity|nan))[ \t]*",
    re.IGNORECASE | re.ASCII,
)


def type_name(given: Any) -> str:
    """One of "int", "float", "bool" and "str", for such a name or Python type.

    Raises:
        ValueError: it is neither.
    """
    name = given if given in _NAMES.values() else _NAMES.get(given)
    if name is None:
        raise ValueError(f"A type must be one of {', '.join(map(repr, _NAMES.values()))}, got {given!r}.")
    return str(name)


def infer_type(values: Iterable[str], nulls: Collection[str]) -> str:
    """The first of int, float and bool that all values have which are not null, else str; str if there are none.

    Raises nothing: numbers beyond 64 bits are floats, and words other than true and false are text.
    """
    known = [value for value in values if value not in nulls]
    if not known:
        return "str"
    return next((name for name, fits in _INFERRED.items() if all(map(fits, known))), "str")


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
    return _within_64_bits(int(digits))


def _within_64_bits(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} has more than 64 bits")
    return value


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
    return found is not None and "x" not in text.lower() and -(1 << 63) <= int(found[1]) < 1 << 63


_CONVERTERS: Mapping[str, Callable[[str], Any]] = {"int": _to_int, "float": _to_float, "bool": _to_bool}
_INFERRED: Mapping[str, Callable[[str], bool]] = {
    "int": _is_decimal_int,
    "float": lambda text: _FLOAT.fullmatch(text) is not None,
    "bool": lambda text: text in BOOLS and not text.isdigit(),
}
