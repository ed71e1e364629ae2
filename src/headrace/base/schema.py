"""Parses saved states: a schema declares what each field must be, and whatever differs is refused by its path.

A schema is a function of a value and its path. It returns the value in dicts and lists, which JSON makes of all others.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

from headrace.base.errors import StateError

Schema: TypeAlias = Callable[[Any, str], Any]

MOST = 2**48
"""A count that is larger is no count of anything."""


def refuse(path: str, expected: str, value: Any) -> NoReturn:
    """Say what is wrong.

    Raises:
        StateError: always.
    """
    raise StateError(
        f"The state is damaged: {path or 'it'} must be {expected}, got {shown(value)}. Pass what state_dict() gave."
    )


def shown(value: Any) -> str:
    """The value in an error message, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 (numbers that are too long, containers that are too deep, users' own classes)
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:100]}…"


def whole(least: int = 0, most: int = MOST) -> Schema:
    """An int between two others, both included."""

    def parse(value: Any, path: str) -> int:
        if type(value) is not int or not least <= value <= most:
            allowed = f"of at least {least}" if most >= MOST else f"from {least} to {most}"
            refuse(path, str(least) if least == most else f"an int {allowed}", value)
        return value

    return parse


count = whole()
positive = whole(1)


def integer(value: Any, path: str) -> int:
    """Any int."""
    if type(value) is not int:
        refuse(path, "an int", value)
    return value


def number(value: Any, path: str) -> float:
    """An int or a float."""
    if type(value) not in (int, float):
        refuse(path, "a number", value)
    found: float = value
    return found


def flag(value: Any, path: str) -> bool:
    """True or False."""
    if type(value) is not bool:
        refuse(path, "True or False", value)
    return value


def text(value: Any, path: str) -> str:
    """A string."""
    if not isinstance(value, str):
        refuse(path, "a string", value)
    return value


def anything(value: Any, path: str) -> Any:
    """Whatever a user's own class says of itself."""
    return value


def packed(n_bytes: int | None = None) -> Schema:
    """Bytes, as Base64."""

    def parse(value: Any, path: str) -> str:
        try:
            raw = b64decode(text(value, path), validate=True)
        except (Base64Error, ValueError):
            refuse(path, "Base64", value)
        if n_bytes is not None and len(raw) != n_bytes:
            refuse(path, f"{n_bytes:,} bytes in Base64", value)
        return str(value)

    return parse


def exactly(expected: Any) -> Schema:
    """One value and no other."""

    def parse(value: Any, path: str) -> Any:
        if type(value) is not type(expected) or value != expected:
            refuse(path, repr(expected), value)
        return value

    return parse


def maybe(schema: Schema) -> Schema:
    """None, or what the schema says."""

    def parse(value: Any, path: str) -> Any:
        return None if value is None else schema(value, path)

    return parse


def either(is_first: Callable[[Any], bool], first: Schema, second: Schema) -> Schema:
    """One of two, as the value decides."""

    def parse(value: Any, path: str) -> Any:
        return (first if is_first(value) else second)(value, path)

    return parse


def items(schema: Schema, n: int | None = None) -> Schema:
    """A list, whose items are all alike."""

    def parse(value: Any, path: str) -> list[Any]:
        if not isinstance(value, (list, tuple)) or n not in (None, len(value)):
            refuse(path, "a list" if n is None else f"a list of {n:,}", value)
        return [schema(item, f"{path}[{i}]") for i, item in enumerate(value)]

    return parse


def each(*schemas: Schema, optional: Schema | None = None) -> Schema:
    """A list of so many items, each with a schema of its own; of one more, if that is optional."""
    lengths = {len(schemas), len(schemas) + (optional is not None)}
    all_schemas = schemas if optional is None else (*schemas, optional)

    def parse(value: Any, path: str) -> list[Any]:
        if not isinstance(value, (list, tuple)) or len(value) not in lengths:
            refuse(path, f"a list of {' or '.join(map(str, sorted(lengths)))}", value)
        return [schema(item, f"{path}[{i}]") for i, (item, schema) in enumerate(zip(value, all_schemas, strict=False))]

    return parse


def table(schema: Schema) -> Schema:
    """A mapping of names to values that are all alike."""

    def parse(value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            refuse(path, "a mapping", value)
        return {text(name, f"a name in {path}"): schema(item, f"{path}[{name!r:.40}]") for name, item in value.items()}

    return parse


def record(
    fields: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None, others: Schema | None = None
) -> Schema:
    """A mapping with these fields, perhaps with the optional ones, and with no others unless there is a schema."""
    all_fields = {**fields, **(optional or {})}

    def parse(value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            refuse(path, "a mapping", value)
        missing = [name for name in fields if name not in value]
        if missing:
            refuse(path, f"a mapping with {', '.join(missing)}", value)
        if others is None and any(name not in all_fields for name in value):
            refuse(path, f"a mapping of {', '.join(all_fields)} only", value)
        return {
            name: all_fields.get(name, others or anything)(item, f"{path}.{name}" if path else str(name))
            for name, item in value.items()
        }

    return parse


def variants(by_field: Mapping[str, Schema], other: Schema) -> Schema:
    """A mapping whose schema is decided by the first of some fields that it has."""

    def parse(value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            refuse(path, "a mapping", value)
        return next((schema for name, schema in by_field.items() if name in value), other)(value, path)

    return parse


def like(example: Any, most: Mapping[str, int] | None = None) -> Schema:
    """Values of the same types as those of an example; lists as long as there.

    Args:
        most: how large the numbers of some names may be; others, as large as 128 bits can hold.
    """
    match example:
        case dict():
            bounds = {name: whole(0, bound) for name, bound in (most or {}).items()}
            return record({name: bounds.get(name, like(value, most)) for name, value in example.items()})
        case list():
            return each(*(like(value, most) for value in example))
        case bool():
            return flag
        case int():
            return whole(0, 2**128 - 1)
        case str():
            return text
        case _:
            return maybe(number)
