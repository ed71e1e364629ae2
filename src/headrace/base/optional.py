"""Optional dependencies: whether they are there, and a clear error where one is missing."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from types import ModuleType

from headrace.base.errors import MissingExtraError


@functools.cache
def is_installed(module: str) -> bool:
    """Whether `module` could be imported, without importing it."""
    if module in sys.modules:
        return sys.modules[module] is not None  # None forbids the import
    return importlib.util.find_spec(module) is not None


def loaded(module: str) -> ModuleType | None:
    """The module if somebody has already imported it, else None. Never imports.

    While another thread is still importing it, most of it is not there: None then, too.
    """
    found = sys.modules.get(module)
    if found is None or found is _complete.get(module):
        return found
    if getattr(getattr(found, "__spec__", None), "_initializing", False):
        return None
    _complete[module] = found
    return found


_complete: dict[str, ModuleType] = {}  # seen to be: asked for several times per batch


def import_extra(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency.

    Raises:
        MissingExtraError: it is not installed; names the extra to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the module is there, but something that it needs itself is not
        raise missing_extra(extra, purpose) from error


def missing_extra(extra: str, purpose: str) -> MissingExtraError:
    """The error for a dependency that is not installed; extras are named after what they install."""
    direct = " ".join(f"'{requirement}'" for requirement in _requirements(extra))
    alternative = f" (or: pip install {direct})" if direct else ""
    return MissingExtraError(
        f"{purpose} needs {extra}, which is not installed. Run: pip install 'headrace[{extra}]'{alternative}"
    )


def _requirements(extra: str) -> list[str]:
    """What an extra installs, for those who have headrace from a checkout."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        found = requires("headrace") or []
    except PackageNotFoundError:  # run from its sources
        return []
    parts = [line.partition(";") for line in found]
    return [name.strip() for name, _, marker in parts if marker.replace('"', "'").strip() == f"extra == '{extra}'"]
