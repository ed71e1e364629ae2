"""Delta, Iceberg, Lance, Hugging Face and ArrayRecord: the rows of the libraries themselves, at the version pinned."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path

import pytest

from headrace import DataLoader, read_delta, read_hub, read_iceberg, read_lance
from headrace.base.errors import RecordError, StateError
from headrace.base.optional import is_installed
from headrace.sources.options import FileOptions
from tests.sources.exactly_once import all_rows, check_exactly_once, check_other_processes

pa = pytest.importorskip("pyarrow")


def needs(module):
    return pytest.mark.skipif(not is_installed(module), reason=f"needs {module}")


KINDS = [
    pytest.param("delta", marks=needs("deltalake")),
    pytest.param("iceberg", marks=needs("pyiceberg")),
    pytest.param("lance", marks=needs("lance")),
]


def table(start, n):
    ids = list(range(start, start + n))
    columns = {"id": ids, "part": [f"p{i % 2}" for i in ids], "x": [i / 2 for i in ids]}
    return pa.table(columns, pa.schema({"id": pa.int64(), "part": pa.string(), "x": pa.float64()}))


@pytest.fixture(scope="module", autouse=True)
def runtimes(tmp_path_factory):
    """Lets the libraries start the threads and open the descriptors that they keep for good; Iceberg's is one."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PYICEBERG_MAX_WORKERS", "1")
    for name, make in (("deltalake", Delta), ("pyiceberg", Iceberg), ("lance", Lance)):
        if is_installed(name):
            made = make(tmp_path_factory.mktemp(name))
            made.append(table(0, 3))
            made.theirs()
            make.read(made.path).count()
            getattr(made, "close", int)()
    yield
    patch.undo()


class Delta:
    """A partitioned table, whose later rows have one more column."""

    read = staticmethod(read_delta)
    version = "version"

    def __init__(self, folder):
        self.path = str(folder / "table")

    def append(self, rows):
        from deltalake import write_deltalake

        write_deltalake(self.path, rows, mode="append", partition_by=["part"], schema_mode="merge")

    def delete(self):
        from deltalake import DeltaTable

        DeltaTable(self.path).delete("id = 3")

    def theirs(self):
        from deltalake import DeltaTable

        found = DeltaTable(self.path)
        return found.version(), found.to_pyarrow_table().to_pylist()

    def files(self):
        return list(Path(self.path).rglob("*.parquet"))


class Iceberg:
    read = staticmethod(lambda path, version=None, **options: read_iceberg(path, snapshot=version, **options))
    version = "snapshot"

    def __init__(self, folder):
        from pyiceberg.catalog.sql import SqlCatalog

        self.folder = folder
        self.catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
        self.catalog.create_namespace("n")
        self.table = self.catalog.create_table("n.t", table(0, 0).schema)

    @property
    def path(self):
        return self.table.metadata_location

    def append(self, rows):
        if "more" in rows.column_names:
            with self.table.update_schema() as update:
                update.union_by_name(rows.schema)
        self.table.append(rows)

    def delete(self):
        self.table.delete("id == 3")

    def theirs(self):
        return self.table.current_snapshot().snapshot_id, self.table.scan().to_arrow().to_pylist()

    def files(self):
        return list(self.folder.rglob("*.parquet"))

    def close(self):
        self.catalog.engine.dispose()


class Lance:
    read = staticmethod(read_lance)
    version = "version"

    def __init__(self, folder):
        self.path = str(folder / "table.lance")

    def append(self, rows):
        import lance

        rows = rows.drop_columns(["more"]) if "more" in rows.column_names else rows
        lance.write_dataset(rows, self.path, mode="append", max_rows_per_file=10)

    def delete(self):
        import lance

        lance.dataset(self.path).delete("id = 3")

    def theirs(self):
        import lance

        found = lance.dataset(self.path)
        return found.version, found.to_table().to_pylist()

    def files(self):
        return list(Path(self.path).rglob("data/*.lance"))


@pytest.fixture
def made(kind, tmp_path):
    made = {"delta": Delta, "iceberg": Iceberg, "lance": Lance}[kind](tmp_path)
    made.append(table(0, 25))
    made.append(table(25, 13).append_column("more", pa.array(range(13))))
    made.delete()
    yield made
    if hasattr(made, "close"):
        made.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_are_those_of_the_library(made):
    _, theirs = made.theirs()
    assert len(theirs) == 37
    for block_bytes in (1, 1 << 20):
        check_exactly_once(made.read(made.path, block_bytes=block_bytes).recipe.source, theirs)
    some = made.read(made.path, columns=["x", "id"]).recipe.source
    assert all_rows(some) == [{"x": row["x"], "id": row["id"]} for row in theirs]
    described = some.describe()
    assert (described["rows"], list(described["columns"])) == (37, ["x", "id"])
    with pytest.raises(ValueError, match="nothing"):
        made.read(made.path, columns=["nothing"]).recipe.source.blocks()


@pytest.mark.parametrize("kind", KINDS)
def test_later_writes_change_nothing_and_older_versions_can_be_read(made):
    version, theirs = made.theirs()
    path = made.path
    stream = made.read(path)
    stream.recipe.source.blocks()
    made.append(table(100, 9))
    assert all_rows(stream.recipe.source) == theirs
    assert all_rows(made.read(made.path, version=version).recipe.source) == theirs
    assert len(all_rows(made.read(made.path).recipe.source)) == 46


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_names_the_version_that_it_was_taken_with(made):
    version, _ = made.theirs()
    options = {"batch_size": 5, "seed": 0, "output": "numpy"}
    with DataLoader(made.read(made.path, columns=["id"]), **options) as loader:
        batches = iter(loader)
        next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = [batch["id"].tolist() for batch in batches]
    path = made.path
    made.append(table(100, 9))
    refused = pytest.raises(StateError, match=rf"was of version {version}, .* \(pass the old version to its reader\)")
    with DataLoader(made.read(made.path, columns=["id"]), **options) as loader, refused:
        loader.load_state_dict(state)
    with DataLoader(made.read(path, version=version, columns=["id"]), **options) as loader:
        loader.load_state_dict(state)
        assert [batch["id"].tolist() for batch in loader] == rest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_workers_read_every_row_once(made, kind, start_method):
    if (kind, start_method) == ("lance", "fork"):
        pytest.skip("lance warns of every fork")
    _, theirs = made.theirs()
    stream = made.read(made.path, block_bytes=1, columns=["id"])
    options = {"num_workers": 2, "multiprocessing_context": multiprocessing.get_context(start_method)}
    with DataLoader(stream, batch_size=4, output="numpy", timeout=60, **options) as loader:
        assert [i for batch in loader for i in batch["id"].tolist()] == [row["id"] for row in theirs]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_or_missing_file_is_named(made):
    source = made.read(made.path).recipe.source
    blocks = source.blocks()
    for path in made.files():
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RecordError, match="table"):
        [list(source.read(block)) for block in blocks]
    for path in made.files():
        path.unlink()
    with pytest.raises(RecordError, match="table"):
        [list(source.read(block)) for block in blocks]


def write_parquet(path, rows):
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)


def ids(first, n):
    return [{"id": first + i} for i in range(n)]


@pytest.mark.parametrize(
    ("names", "split", "config", "found"),
    [
        (["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"], None, None, [0, 1]),
        (["data/train-00000-of-00001-abc.parquet", "data/test-00000-of-00001-abc.parquet"], "test", None, [1]),
        (["train/0000.parquet", "validation/0000.parquet"], "validation", None, [1]),
        (["en/train/0000.parquet", "de/train/0000.parquet"], "train", "de", [1]),
        (["en/dev-00000-of-00001.parquet", "en/train-00000-of-00001.parquet"], "dev", "en", [0]),
        (["train.parquet", "val.parquet"], "validation", None, [1]),
        (["whatever.parquet"], None, None, [0]),
    ],
)
def test_folders_as_on_the_hub(tmp_path, names, split, config, found):
    for i, name in enumerate(names):
        write_parquet(tmp_path / name, ids(100 * i, 10))
    (tmp_path / "README.md").write_text("# data")
    expected = [row for i in found for row in ids(100 * i, 10)]
    assert all_rows(read_hub(tmp_path, split, config=config).recipe.source) == expected


def test_splits_and_configurations_must_be_chosen(tmp_path):
    write_parquet(tmp_path / "en" / "train-00000-of-00001.parquet", ids(0, 2))
    write_parquet(tmp_path / "en" / "test-00000-of-00001.parquet", ids(0, 2))
    write_parquet(tmp_path / "de" / "test-00000-of-00001.parquet", ids(0, 2))
    with pytest.raises(ValueError, match=r"config must be one of \['de', 'en'\]"):
        read_hub(tmp_path)
    with pytest.raises(ValueError, match=r"split must be one of \['test', 'train'\].*got None"):
        read_hub(tmp_path, config="en")
    with pytest.raises(FileNotFoundError, match="no file"):
        read_hub(tmp_path / "nowhere")


def test_what_save_to_disk_wrote(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    datasets.disable_progress_bars()
    import tqdm

    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # which would be a thread that stays
    rows = [{"id": i, "text": "é" * (i % 5), "tags": ["a"] * (i % 3)} for i in range(2500)]
    whole = datasets.Dataset.from_list(rows)
    whole.save_to_disk(str(tmp_path / "one"), num_shards=1)
    datasets.DatasetDict({"train": whole, "test": whole.select(range(7))}).save_to_disk(str(tmp_path / "several"))
    theirs = datasets.load_from_disk(str(tmp_path / "one")).to_list()
    source = read_hub(tmp_path / "one", block_bytes=10_000).recipe.source
    check_exactly_once(source, theirs)
    assert len(source.blocks()) == 3
    assert source.describe()["rows"] == 2500
    check_other_processes(source)
    assert all_rows(read_hub(tmp_path / "several", "test").recipe.source) == rows[:7]
    with pytest.raises(ValueError, match=r"split must be one of \['test', 'train'\]"):
        read_hub(tmp_path / "several")
    shutil.rmtree(tmp_path / "several" / "test")
    with pytest.raises(FileNotFoundError, match=r"test/state\.json"):
        read_hub(tmp_path / "several", "test")


def test_array_records(tmp_path):
    module = pytest.importorskip("array_record.python.array_record_module", reason="needs array-record")
    from headrace.sources.array_record import ArrayRecordSource

    records = [bytes([i % 256]) * (i % 40) for i in range(1000)]
    for number in range(2):
        writer = module.ArrayRecordWriter(str(tmp_path / f"{number}.array_record"), "group_size:1")
        for record in records[number * 500 : number * 500 + 500]:
            writer.write(record)
        writer.close()
    for block_bytes in (1000, 1 << 20):
        check_exactly_once(ArrayRecordSource(tmp_path, options=FileOptions(block_bytes=block_bytes)), records)
    check_other_processes(ArrayRecordSource(tmp_path))
    (tmp_path / "0.array_record").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(RecordError, match=r"0\.array_record"):
        all_rows(ArrayRecordSource(tmp_path))
