"""Being called when a module is imported, without importing it."""

from __future__ import annotations

import importlib
import sys

import pytest

from headrace.base.after_import import _watcher, after_import


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder for modules that only this test has."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    finders = list(sys.meta_path)

    def write(name, text=""):
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]
    assert sys.meta_path == finders


def test_a_module_that_is_there_is_told_at_once():
    told = []
    after_import("sys", told.append)
    assert told == [sys]


def test_a_module_is_told_once_right_after_it_was_executed(modules):
    modules("late_one", "value = 1")
    told = []
    after_import("late_one", lambda module: told.append((module.value, module.__name__)))
    assert told == []
    assert "late_one" not in sys.modules
    import late_one

    assert told == [(1, "late_one")]
    importlib.reload(late_one)
    assert len(told) == 1


def test_several_callbacks_come_in_their_order_and_modules_by_themselves(modules):
    modules("late_two")
    modules("late_three", "import late_two")
    told = []
    for i in range(3):
        after_import("late_two", lambda module, i=i: told.append(("two", i)))
    after_import("late_three", lambda module: told.append(("three", 0)))
    importlib.import_module("late_three")
    assert told == [("two", 0), ("two", 1), ("two", 2), ("three", 0)]


def test_the_import_machinery_is_as_it_was_afterwards(modules):
    finders = list(sys.meta_path)  # without torch, the watcher still waits for it
    modules("late_four")
    after_import("late_four", lambda module: None)
    assert sys.meta_path[0] is _watcher
    module = importlib.import_module("late_four")
    assert sys.meta_path == finders
    assert "exec_module" not in vars(module.__spec__.loader)
    assert "late_four" not in _watcher.callbacks


def test_a_module_that_fails_is_told_when_it_succeeds(modules):
    modules("late_five", "import os\nif os.environ.get('LATE_FIVE') != 'yes': raise OSError('not yet')")
    told = []
    after_import("late_five", told.append)
    with pytest.raises(OSError, match="not yet"):
        importlib.import_module("late_five")
    assert told == []
    modules("late_five", "")
    module = importlib.import_module("late_five")
    assert told == [module]


def test_a_module_that_does_not_exist_is_an_import_error_as_ever(modules):
    after_import("late_and_never", lambda module: None)
    try:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("late_and_never")
        assert importlib.util.find_spec("late_and_never") is None
    finally:
        del _watcher.callbacks["late_and_never"]
        if not _watcher.callbacks and _watcher in sys.meta_path:
            sys.meta_path.remove(_watcher)


def test_submodules_are_told_too(modules, tmp_path):
    (tmp_path / "late_package").mkdir()
    (tmp_path / "late_package" / "__init__.py").write_text("")
    (tmp_path / "late_package" / "inner.py").write_text("x = 5")
    importlib.invalidate_caches()
    told = []
    after_import("late_package.inner", lambda module: told.append(module.x))
    importlib.import_module("late_package")
    assert told == []
    importlib.import_module("late_package.inner")
    assert told == [5]


def test_beside_another_finder_that_asks_all_others(modules):
    class Curious:
        def find_spec(self, name, path, target=None):
            found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
            return next((spec for spec in found if spec is not None), None)

    modules("watched_by_two", "value = 1")
    told = []
    after_import("watched_by_two", lambda module: told.append(module.value))
    curious = Curious()
    sys.meta_path.insert(0, curious)
    try:
        assert importlib.import_module("watched_by_two").value == 1
    finally:
        sys.meta_path.remove(curious)
    assert told == [1]
