"""Folders named key=value are columns, in every format that has any, as pyarrow has them."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

from headrace import DataLoader, read_arrow, read_csv, read_jsonl, read_parquet
from headrace.base.optional import is_installed
from headrace.sources.path_columns import find_path_columns
from headrace.sources.source import FileVersion

FOLDERS = ["year=2023/kind=a%20b", "year=2024/kind=c", "year=2024/kind=__HIVE_DEFAULT_PARTITION__"]
needs_arrow = pytest.mark.skipif(not is_installed("pyarrow"), reason="needs pyarrow")


def write_csv(path, numbers):
    path.write_text("".join(["id\n", *(f"{n}\n" for n in numbers)]))


def write_jsonl(path, numbers):
    path.write_text("".join(json.dumps({"id": n}) + "\n" for n in numbers))


def write_parquet(path, numbers):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": numbers}), path)


def write_arrow(path, numbers):
    import pyarrow as pa
    from pyarrow import feather

    feather.write_feather(pa.table({"id": numbers}), str(path))


FORMATS = {
    "csv": (write_csv, read_csv),
    "jsonl": (write_jsonl, read_jsonl),
    "parquet": pytest.param((write_parquet, read_parquet), marks=needs_arrow),
    "arrow": pytest.param((write_arrow, read_arrow), marks=needs_arrow),
}
EXPECTED = [
    {"id": 10 * i + j, "year": year, "kind": kind}
    for i, (year, kind) in enumerate([(2023, "a b"), (2024, None), (2024, "c")])
    for j in range(3)
]


@pytest.fixture(params=FORMATS.values(), ids=FORMATS.keys())
def table(request, tmp_path):
    write, read = request.param
    for i, folder in enumerate([FOLDERS[0], FOLDERS[2], FOLDERS[1]]):
        (tmp_path / folder).mkdir(parents=True)
        write(tmp_path / folder / "part-0.x", [10 * i + j for j in range(3)])
    (tmp_path / "_SUCCESS").touch()
    return tmp_path, read


def by_id(rows):
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.parametrize("workers", [0, 2])
def test_folders_are_columns(table, workers):
    folder, read = table
    for paths in (folder, f"{folder}/**/*.x", f"{folder}/year=*/kind=*/*.x"):
        with DataLoader(read(paths), batch_size=2, collate_fn=list, num_workers=workers) as loader:
            rows = by_id(row for batch in loader for row in batch)
        assert rows == EXPECTED
        assert list(rows[0]) == ["id", "year", "kind"]


def test_only_folders_below_what_was_given_unless_all_are_asked_for(table):
    folder, read = table
    file = folder / FOLDERS[0] / "part-0.x"
    assert next(iter(read(folder / "year=2024"))).keys() == {"id", "kind"}
    assert next(iter(read(file))) == {"id": 0}
    assert next(iter(read(file, hive_partitioning=True))) == {"id": 0, "year": 2023, "kind": "a b"}
    assert next(iter(read(folder, hive_partitioning=False))).keys() == {"id"}


def test_batches_of_columns(table):
    folder, read = table
    options = {} if read is read_jsonl else {"rows": "columns"}
    stream = read(folder, **options).as_columns()
    [batch] = DataLoader(pickle.loads(pickle.dumps(stream)), batch_size=20, output="numpy")
    assert isinstance(batch["year"], np.ndarray)
    assert sorted(batch["year"].tolist()) == [2023] * 3 + [2024] * 6
    assert sorted(map(str, batch["kind"])) == ["None"] * 3 + ["a b"] * 3 + ["c"] * 3


def test_a_shuffled_stream_resumes(table):
    folder, read = table

    def loader():
        return DataLoader(read(folder).shuffle(blocks=2), batch_size=2, collate_fn=list, seed=1)

    expected, first, second = list(loader()), loader(), loader()
    batches = iter(first)
    begun = [next(batches), next(batches)]
    second.load_state_dict(first.state_dict())
    assert begun + list(second) == expected


@pytest.mark.parametrize("write", [write_csv, write_jsonl])
def test_a_column_of_the_file_takes_precedence(tmp_path, write):
    (tmp_path / "id=7").mkdir()
    write(tmp_path / "id=7" / "a.x", [1, 2])
    read = read_csv if write is write_csv else read_jsonl
    assert list(read(tmp_path)) == [{"id": 1}, {"id": 2}]


@needs_arrow
@pytest.mark.parametrize(("write", "read"), [(write_parquet, read_parquet), (write_arrow, read_arrow)])
class TestTables:
    def test_columns_can_be_chosen(self, tmp_path, write, read):
        (tmp_path / "year=1").mkdir()
        write(tmp_path / "year=1" / "a.x", [1])
        assert list(map(list, list(read(tmp_path, columns=["year", "id"])))) == [["year", "id"]]
        assert list(read(tmp_path, columns=["id"])) == [{"id": 1}]
        with pytest.raises(ValueError, match="must name a column of the files"):
            list(read(tmp_path, columns=["year"]))

    def test_a_column_of_the_file_takes_precedence(self, tmp_path, write, read):
        (tmp_path / "id=7").mkdir()
        write(tmp_path / "id=7" / "a.x", [1, 2])
        assert list(read(tmp_path)) == [{"id": 1}, {"id": 2}]


@needs_arrow
def test_filters_know_folders(tmp_path):
    for year in (2023, 2024):
        (tmp_path / f"year={year}").mkdir()
        write_parquet(tmp_path / f"year={year}" / "a.parquet", [year * 10, year * 10 + 1])
    stream = read_parquet(tmp_path, filters=[("year", "==", 2024), ("id", ">", 20240)])
    assert list(stream) == [{"id": 20241, "year": 2024}]
    assert len(stream.recipe.source.blocks()) == 1  # the other file is not read at all


@needs_arrow
@pytest.mark.parametrize(
    "values",
    [["1", "2"], ["01", "-5"], ["1", "x"], [str(2**31)], [str(2**31 - 1)], ["a%2Fb"], ["+1"], ["1.5"], ["", "1"]],
)
def test_types_are_those_that_pyarrow_infers(tmp_path, values):
    import pyarrow.dataset as ds

    for value in values:
        (tmp_path / f"key={value}").mkdir()
        write_parquet(tmp_path / f"key={value}" / "a.parquet", [1])
    expected = ds.dataset(tmp_path, partitioning="hive").to_table().column("key")
    stream = read_parquet(tmp_path)
    assert stream.recipe.source.describe()["columns"]["key"] == str(expected.type)
    assert sorted(map(str, (row["key"] for row in stream))) == sorted(map(str, expected.to_pylist()))


def test_addresses():
    files = [FileVersion(f"memory:///data/year={year}/a", 1, None) for year in (1, 2)]
    found = find_path_columns(["memory://data"], files, None)
    assert found.types == {"year": "int"}
    assert found.values(files[1].path) == {"year": 2}
