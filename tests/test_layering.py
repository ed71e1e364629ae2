"""Who may import whom, where the optional dependencies live, and what modules may look like."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

import headrace
from tests.needs import needs_torch

# Each part of the library, and the other parts that it may import.
MAY_IMPORT = {
    "base": set(),
    "frameworks": {"base"},
    # The stages: none imports another.
    "order": {"base", "frameworks"},
    "sources": {"base"},
    "data": {"base", "frameworks"},
    "batch": {"base", "frameworks"},
    "transport": {"base", "frameworks"},
    "deliver": {"base", "frameworks"},
    "insight": {"base"},
    # Streams put sources in an order; they are datasets, too.
    "streams": {"base", "data", "order", "sources"},
    # What runs a plan: it knows none of them.
    "round_robin": set(),
    "engines": {"base", "frameworks", "data", "batch", "transport"},
    "flow": {"base", "engines", "round_robin"},
    "preparing": {"base", "engines", "deliver"},
    # The loaders, from the bottom up.
    "arguments": {"base", "batch"},
    "config": {"base", "batch", "data", "deliver", "engines", "frameworks", "insight"},
    "epochs": {
        "base",
        "config",
        "data",
        "deliver",
        "engines",
        "flow",
        "frameworks",
        "insight",
        "order",
        "preparing",
    },
    "loader_base": {"arguments", "base", "config", "deliver", "epochs", "insight", "order"},
    "loader": {
        "arguments",
        "base",
        "batch",
        "config",
        "data",
        "deliver",
        "engines",
        "frameworks",
        "insight",
        "loader_base",
        "order",
        "streams",
        "tuning",
    },
    "multistream": {
        "arguments",
        "base",
        "batch",
        "config",
        "data",
        "deliver",
        "engines",
        "frameworks",
        "insight",
        "loader_base",
        "order",
        "streams",
        "tuning",
    },
    "conformance": {"base"},
    "testing": {"base", "conformance", "data", "engines"},
    # What is built on the loaders.
    "tuning": {"base", "data", "frameworks", "loader", "streams"},
    "torch_patch": {"loader", "order"},
    "cli": {
        "base",
        "engines",
        "insight",
        "inspecting",
        "loader",
        "multistream",
        "order",
        "torch_patch",
        "transport",
        "tuning",
    },
    "integrations": {"base", "insight", "loader_base"},
    "inspecting": {"base", "sources", "streams"},
    "__main__": {"cli"},
    "__init__": {
        "base",
        "batch",
        "data",
        "engines",
        "insight",
        "inspecting",
        "loader",
        "multistream",
        "order",
        "sources",
        "streams",
        "tuning",
    },
}
# The only modules that import an optional dependency, and name its extra where it is missing.
HOMES = {
    "array_record": ["sources/array_record.py"],
    "deltalake": ["sources/arrow_snapshots.py"],
    "soundfile": ["sources/media_decoders.py"],
    "turbojpeg": ["sources/media_decoders.py"],
    "h5py": ["sources/arrays.py"],
    "zarr": ["sources/arrays.py"],
    "google_crc32c": ["sources/tfrecord.py"],
    "lance": ["sources/arrow_snapshots.py"],
    "pyiceberg": ["sources/arrow_snapshots.py"],
    "accelerate": ["integrations/accelerate.py"],
    "composer": ["integrations/composer.py"],
    "keras": ["integrations/keras.py"],
    "lightning": ["integrations/lightning.py"],
    "torchtitan": ["integrations/torchtitan.py"],
    "transformers": ["integrations/transformers.py"],
    "PIL": ["sources/mds.py", "sources/media_decoders.py", "sources/tar.py", "cli/torch_bench.py"],
    "fsspec": ["sources/*.py"],
    "jax": ["frameworks/jax_arrays.py", "integrations/jax.py"],
    "matplotlib": ["insight/plot.py", "cli/output.py"],
    "nats": ["sources/live_nats.py"],
    "opentelemetry": ["insight/opentelemetry_metrics.py"],
    "psycopg": ["sources/databases.py"],
    "pyarrow": ["sources/arrow*.py"],
    "ray": ["engines/ray_*.py", "integrations/ray_train.py"],
    "redis": ["sources/live_redis.py"],
    "rich": ["cli/*.py"],
    "torch": ["frameworks/torch_*.py", "cli/torch_*.py"],
    "typer": ["cli/*.py"],
}
# Of the engines, the flow may know the protocol only.
FLOW_KNOWS = {"headrace.engines.engine"}

NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "misc", "helpers", "compat"}

ROOT = Path(headrace.__file__).parent
MODULES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported anywhere, by a statement or by a call with its name."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, level=0) if module is not None:
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.ImportFrom():
                raise AssertionError(f"relative import in line {node.lineno}")
            case ast.Call(
                func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(module)), *_]
            ):
                if name in {"import_extra", "import_module", "__import__"}:
                    yield module


def part_of(path: str) -> str:
    """The part of the library that a file belongs to."""
    return path.split("/")[0].removesuffix(".py")


def parts_imported(tree: ast.AST) -> set[str]:
    ours = (module.split(".") for module in imports(tree) if module.split(".")[0] == "headrace")
    return {names[1] if names[1] in MAY_IMPORT else "__init__" for names in ours if len(names) > 1}


def test_every_part_is_in_the_table():
    assert {part_of(path) for path in MODULES} == set(MAY_IMPORT)


def test_each_part_imports_only_what_it_may():
    wrong = {
        path: forbidden
        for path, tree in MODULES.items()
        if (forbidden := parts_imported(tree) - MAY_IMPORT[part_of(path)] - {part_of(path)})
    }
    assert wrong == {}


def test_the_flow_knows_engines_by_their_protocol_only():
    known = {module.rpartition(".")[0] for module in imports(MODULES["flow.py"]) if ".engines" in module}
    assert known == FLOW_KNOWS


@pytest.mark.parametrize("library", HOMES)
def test_each_optional_dependency_is_at_home(library):
    users = [path for path, tree in MODULES.items() if library in {name.split(".")[0] for name in imports(tree)}]
    assert users
    assert [path for path in users if not any(fnmatch(path, home) for home in HOMES[library])] == []


def test_the_names_of_modules_say_something():
    assert [path for path in MODULES if NAMES_THAT_SAY_NOTHING & set(re.split(r"[/.]", path))] == []


def test_every_module_says_what_it_is_for():
    assert [path for path, tree in MODULES.items() if not ast.get_docstring(tree)] == []


def test_all_is_sorted_and_is_what_the_package_imports():
    def names_in(statements):
        found = [node for node in statements if isinstance(node, ast.ImportFrom) and node.module.startswith("headrace")]
        return {alias.name for node in found for alias in node.names}

    body = MODULES["__init__.py"].body
    (for_type_checkers,) = [node for node in body if isinstance(node, ast.If)]
    late = names_in(for_type_checkers.body)
    assert headrace.__all__ == sorted(headrace.__all__)
    assert set(headrace.__all__) == names_in(body) | late
    assert set(headrace._LATE) == late
    assert all(hasattr(headrace, name) for name in headrace.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        headrace.nothing  # noqa: B018


def test_everything_that_users_know_from_torch_is_there():
    names = [
        "Dataset",
        "IterableDataset",
        "TensorDataset",
        "StackDataset",
        "ConcatDataset",
        "ChainDataset",
        "Subset",
        "random_split",
        "Sampler",
        "SequentialSampler",
        "RandomSampler",
        "SubsetRandomSampler",
        "WeightedRandomSampler",
        "BatchSampler",
        "DistributedSampler",
        "DataLoader",
        "get_worker_info",
        "default_collate",
        "default_convert",
    ]
    assert set(names) <= set(headrace.__all__)


@needs_torch
def test_torch_utils_data_has_nothing_else_but_datapipes():
    from torch.utils import data

    datapipes = [
        "DFIterDataPipe",
        "DataChunk",
        "IterDataPipe",
        "MapDataPipe",
        "_DatasetKind",
        "argument_validation",
        "functional_datapipe",
        "guaranteed_datapipes_determinism",
        "non_deterministic",
        "runtime_validation",
        "runtime_validation_disabled",
    ]
    assert set(data.__all__) - set(datapipes) <= set(headrace.__all__)


def test_the_checks_above_see_what_they_should():
    tree = ast.parse(
        "def f():\n    from headrace.order.key_plan import plan_keys\nx = import_extra('torch.nn', 'torch', '')"
    )
    assert set(imports(tree)) == {"headrace.order.key_plan.plan_keys", "torch.nn"}
    assert parts_imported(tree) == {"order"}
