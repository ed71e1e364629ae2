"""Optional dependencies: found without importing them, and named with their extra where they are missing."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from headrace import MissingExtraError
from headrace.base.optional import import_extra, is_installed, loaded


def test_is_installed_does_not_import():
    assert is_installed("wave")
    assert not is_installed("surely_not_there")


def test_loaded_never_imports():
    assert loaded("sys") is sys
    assert loaded("surely_not_there") is None


def test_what_is_there_is_imported():
    assert import_extra("json.decoder", "torch", "Reading") is sys.modules["json.decoder"]


@pytest.mark.parametrize("module", ["surely_not_there", "surely_not_there.inner"])
def test_what_is_missing_names_purpose_and_extra(module):
    with pytest.raises(MissingExtraError) as caught:
        import_extra(module, "arrow", "Reading Parquet")
    assert str(caught.value) == (
        "Reading Parquet needs arrow, which is not installed. Run: pip install 'headrace[arrow]' "
        "(or: pip install 'pyarrow>=15')"
    )


def test_a_broken_dependency_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import surely_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="surely_not_there") as caught:
        import_extra("half_installed", "torch", "This")
    assert not isinstance(caught.value, MissingExtraError)


@pytest.mark.parametrize(("module", "installed"), [(ModuleType("made_by_hand"), True), (None, False)])
def test_what_lies_in_sys_modules_decides(monkeypatch, module, installed):
    monkeypatch.setitem(sys.modules, "made_by_hand", module)  # None forbids the import
    assert is_installed("made_by_hand") is installed
    is_installed.cache_clear()
