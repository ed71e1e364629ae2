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
    return module in sys.modules or importlib.util.find_spec(module) is not None


def loaded(module: str) -> ModuleType | None:
    """The module if somebody has already imported it, else None. Never imports."""
    return sys.modules.get(module)


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
        raise MissingExtraError(
            f"{purpose} needs {module}, which is not installed. Run: pip install 'headrace[{extra}]'"
        ) from error
