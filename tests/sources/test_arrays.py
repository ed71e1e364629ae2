"""HDF5, Zarr and NumPy's files: entries and windows of arrays, in blocks along chunks."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader, Windows, inspect, read_hdf5, read_npy, read_zarr
from headrace.base.errors import ChangedFileError, RecordError
from headrace.base.optional import is_installed
from headrace.sources.source import Block
from tests.sources.exactly_once import rows_of
from tests.sources.library_rows import plain

KINDS = [
    pytest.param("hdf5", marks=pytest.mark.skipif(not is_installed("h5py"), reason="needs h5py")),
    pytest.param("zarr", marks=pytest.mark.skipif(not is_installed("zarr"), reason="needs zarr")),
    "npy",
    "npz",
]


@pytest.fixture(scope="module", autouse=True)
def zarr_threads(tmp_path_factory):
    """Lets Zarr start the threads that it keeps for good."""
    if is_installed("zarr"):
        list(read_zarr(write("zarr", tmp_path_factory.mktemp("zarr"), 40)))


def arrays_of(n):
    return {"x": np.arange(3 * n, dtype=np.float32).reshape(n, 3), "y": np.arange(n)}


def write(kind, folder, n, chunk=4, name="data"):
    arrays = arrays_of(n)
    if kind == "hdf5":
        import h5py

        with h5py.File(folder / f"{name}.h5", "w") as file:
            for key, array in arrays.items():
                chunks = (chunk, *array.shape[1:]) if n else None
                file.create_dataset(key, data=array, chunks=chunks, compression="gzip" if n else None)
        return folder / f"{name}.h5"
    if kind == "zarr":
        import zarr

        group = zarr.open_group(str(folder / name), mode="w")
        for key, array in arrays.items():
            made = group.create_array(key, shape=array.shape, dtype=array.dtype, chunks=(chunk, *array.shape[1:]))
            made[:] = array
        return folder / name
    if kind == "npz":
        np.savez(folder / f"{name}.npz", **arrays)
        return folder / f"{name}.npz"
    for key, array in arrays.items():
        np.save(folder / f"{name}-{key}.npy", array)
    return {key: folder / f"{name}-{key}.npy" for key in arrays}


READ = {"hdf5": read_hdf5, "zarr": read_zarr, "npy": read_npy, "npz": read_npy}


def expected(n, windows=None):
    arrays = arrays_of(n)
    if windows is None:
        return [{key: array[i].tolist() for key, array in arrays.items()} for i in range(n)]
    rows, i = [], 0
    while i + windows.length + windows.horizon <= n:
        row, middle = {}, i + windows.length
        for key, array in arrays.items():
            row[key] = array[i:middle].tolist()
            if windows.horizon and (windows.targets is None or key in windows.targets):
                row[f"{key}_target"] = array[middle : middle + windows.horizon].tolist()
        rows.append(row)
        i += windows.stride
    return rows


def check(stream, rows):
    source = stream.recipe.source
    blocks = source.blocks()
    found = [rows_of(source, block) for block in blocks]
    assert plain([row for part in found for row in part]) == rows
    for block, part in zip(blocks, found, strict=True):
        assert block.rows == len(part) > 0
        for first in {1, len(part) // 2, len(part)}:
            assert plain(rows_of(source, block, first)) == plain(part[first:])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(1, 40),
    chunk=st.sampled_from([1, 4, 7, 50]),
    block=st.sampled_from([1, 200, 100_000]),
    windows=st.none()
    | st.builds(Windows, st.integers(1, 9), st.integers(1, 5), st.integers(0, 3), st.sampled_from([None, ("y",)])),
)
def test_entries_and_windows_come_once(tmp_path_factory, kind, n, chunk, block, windows):
    data = write(kind, tmp_path_factory.mktemp(kind), n, min(chunk, n))
    check(READ[kind](data, windows=windows, block_bytes=block), expected(n, windows))


@pytest.mark.parametrize("kind", KINDS)
def test_loaders_resume_shuffle_and_inspect(tmp_path, kind):
    stream = READ[kind](write(kind, tmp_path, 62), windows=Windows(5, 2, 3), block_bytes=100)
    rows = expected(62, Windows(5, 2, 3))
    for workers, engine in ((0, "processes"), (2, "threads"), (2, "processes")):
        with DataLoader(stream, batch_size=4, num_workers=workers, engine=engine, collate_fn=plain) as loader:
            assert [row for batch in loader for row in batch] == rows
    shuffled = stream.shuffle()
    with DataLoader(shuffled, batch_size=4, seed=1, collate_fn=plain) as loader:
        seen = [(batch, json.dumps(loader.state_dict())) for batch in loader]
    assert sorted((row for batch, _ in seen for row in batch), key=str) == sorted(rows, key=str)
    with DataLoader(shuffled, batch_size=4, seed=1, num_workers=2, collate_fn=plain) as loader:
        loader.load_state_dict(json.loads(seen[3][1]))
        assert list(loader) == [batch for batch, _ in seen[4:]]
    ranks = []
    for rank in range(2):
        with DataLoader(shuffled, batch_size=4, seed=1, shard=(rank, 2), collate_fn=plain) as loader:
            ranks += [row for batch in loader for row in batch]
    assert {str(row) for row in ranks} == {str(row) for row in rows}
    found = inspect(stream)
    assert found.n_rows == len(rows)
    assert set(found.columns) == {"x", "y"}


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_arrays_of_a_batch(tmp_path, kind):
    data = write(kind, tmp_path, 20)
    with DataLoader(READ[kind](data, rows="columns"), batch_size=8, output="numpy") as loader:
        batches = list(loader)
    assert [batch["x"].shape for batch in batches] == [(8, 3), (8, 3), (4, 3)]
    assert np.concatenate([batch["y"] for batch in batches]).tolist() == list(range(20))
    some = READ[kind](data, {"target": "y"})
    assert plain(list(some))[3] == {"target": 3}
    with pytest.raises(ValueError, match=r"`arrays` must be among .*'nothing'"):
        READ[kind](data, ["nothing"]).recipe.source.blocks()


@pytest.mark.parametrize("kind", KINDS[:2])
def test_blocks_are_whole_chunks(tmp_path, kind):
    source = READ[kind](write(kind, tmp_path, 50, chunk=8), block_bytes=400).recipe.source
    starts = [block.start for block in source.blocks()]
    assert len(starts) > 2
    assert all(start % 8 == 0 for start in starts)


def test_several_files_and_arrays_of_different_lengths(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(5))
    np.save(tmp_path / "b.npy", np.arange(5, 8))
    assert [row["array"] for row in read_npy([tmp_path / "a.npy", tmp_path / "b.npy"])] == list(range(8))
    with pytest.raises(ValueError, match="same length"):
        read_npy({"a": tmp_path / "a.npy", "b": tmp_path / "b.npy"}).recipe.source.blocks()


@pytest.mark.parametrize("kind", KINDS)
def test_damage_names_the_file(tmp_path, kind):
    data = write(kind, tmp_path, 200)
    source = READ[kind](data, block_bytes=100).recipe.source
    blocks = list(source.blocks())
    if kind == "zarr":
        chunks = [path for path in (tmp_path / "data" / "x").rglob("*") if path.is_file() and path.name != "zarr.json"]
        chunks[0].write_bytes(b"nothing of the kind")
    else:
        path = data["x"] if kind == "npy" else data
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises((RecordError, ChangedFileError), match=str(tmp_path)):
        [rows_of(source, block) for block in blocks]
    if kind != "zarr":
        with pytest.raises(RecordError, match=str(tmp_path)):
            list(READ[kind](data))


def test_objects_are_refused(tmp_path):
    np.save(tmp_path / "o.npy", np.array([{}, None]), allow_pickle=True)
    with pytest.raises(RecordError, match=r"o\.npy"):
        read_npy(tmp_path / "o.npy").recipe.source.blocks()


@pytest.mark.parametrize("wrong", [{"length": 0}, {"length": 2, "stride": 0}, {"length": 2, "horizon": -1}])
def test_windows_that_cannot_be(wrong):
    with pytest.raises(ValueError, match="must be"):
        Windows(**wrong)


def test_a_block_says_which_rows_it_has(tmp_path):
    (block,) = read_npy(write("npz", tmp_path, 4)).recipe.source.blocks()
    assert isinstance(block, Block)
    assert "rows 0 to 4" in block.where() or "bytes" in block.where()
