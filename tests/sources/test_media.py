"""Folders of images and sounds: listed as torchvision does it, decoded in threads, bad files named."""

from __future__ import annotations

import io
import json
import os
import pickle

import numpy as np
import pytest

from headrace import DataLoader, ImageFolder, inspect, read_audio, read_images
from headrace.base.errors import RecordError
from headrace.sources import media
from tests.sources.exactly_once import rows_of
from tests.sources.library_rows import plain

Image = pytest.importorskip("PIL.Image")


def write(folder, n=23, size=(9, 7)):
    """Images of one colour each, in classes whose names are not in natural order."""
    paths = []
    for i in range(n):
        place = folder / f"class{(10, 9, 1)[i % 3]}" / ("deep" if i % 5 == 4 else "")
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (i, 2 * i, 3)).save(place / f"{i}.png")
        paths.append(place / f"{i}.png")
    (folder / "class1" / "notes.txt").write_text("no image")
    return paths


def as_torchvision_lists(root):
    """Paths and labels as torchvision's `make_dataset` has them."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    found = []
    for label, name in enumerate(classes):
        for place, _, files in sorted(os.walk(root / name, followlinks=True)):
            found += [(os.path.join(place, file), label) for file in sorted(files) if file.endswith(".png")]
    return classes, found


def test_classes_labels_and_order_are_those_of_torchvision(tmp_path):
    write(tmp_path)
    classes, listed = as_torchvision_lists(tmp_path)
    stream = read_images(tmp_path)
    assert stream.recipe.source.classes == classes == ["class1", "class10", "class9"]
    assert [(row["path"], row["label"]) for row in stream] == listed
    dataset = ImageFolder(tmp_path, transform=lambda image: int(image[0, 0, 0]))
    assert dataset.class_to_idx == {"class1": 0, "class10": 1, "class9": 2}
    number = int(os.path.basename(listed[5][0]).removesuffix(".png"))
    assert (len(dataset), dataset[5]) == (23, (number, listed[5][1]))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("block_bytes", [1, 300, None])
def test_rows_come_once_from_any_row_on(tmp_path, threads, block_bytes):
    write(tmp_path)
    rows = [
        {"image": [[[i, 2 * i, 3]] * 9] * 7, "path": path, "label": label}
        for path, label in as_torchvision_lists(tmp_path)[1]
        for i in [int(os.path.basename(path).removesuffix(".png"))]
    ]
    source = pickle.loads(pickle.dumps(read_images(tmp_path, threads=threads, block_bytes=block_bytes).recipe.source))
    found = [plain(rows_of(source, block)) for block in source.blocks()]
    assert [row for part in found for row in part] == rows
    for block, part in zip(source.blocks(), found, strict=True):
        assert plain(rows_of(source, block, 1)) == part[1:]
        assert block.rows == len(part)


@pytest.mark.parametrize(("workers", "engine"), [(0, "processes"), (2, "threads"), (2, "processes")])
def test_loaders_of_every_kind(tmp_path, workers, engine):
    write(tmp_path, 24)
    stream = read_images(tmp_path, threads=2, block_bytes=300).shuffle()
    options = {"batch_size": 4, "seed": 0, "output": "numpy"}
    with DataLoader(stream, **options) as loader:
        seen = [(batch["path"], json.dumps(loader.state_dict())) for batch in loader]
    with DataLoader(stream, num_workers=workers, engine=engine, **options) as loader:
        loader.load_state_dict(json.loads(seen[1][1]))
        assert [batch["path"] for batch in loader] == [paths for paths, _ in seen[2:]]
        batch = next(iter(loader))
    assert batch["image"].shape == (4, 7, 9, 3)
    ranks = []
    for rank in range(2):
        with DataLoader(stream, shard=(rank, 2), **options) as loader:
            ranks += [path for batch in loader for path in batch["path"]]
    assert sorted(ranks) == sorted(path for paths, _ in seen for path in paths)
    with DataLoader(ImageFolder(tmp_path), shuffle=True, num_workers=workers, engine=engine, **options) as loader:
        assert sum(len(labels) for _, labels in loader) == 24
    assert inspect(stream).n_rows == 24


def saved(image, suffix="PNG", **options):
    memory = io.BytesIO()
    image.save(memory, suffix, **options)
    return memory.getvalue()


@pytest.mark.parametrize(
    ("stored", "mode", "shape", "first"),
    [
        (Image.new("L", (4, 2), 7), "RGB", (2, 4, 3), [7, 7, 7]),
        (Image.new("RGBA", (4, 2), (1, 2, 3, 9)), "RGB", (2, 4, 3), [1, 2, 3]),
        (Image.new("RGBA", (4, 2), (1, 2, 3, 9)), None, (2, 4, 4), [1, 2, 3, 9]),
        (Image.new("RGB", (4, 2), (5, 5, 5)), "L", (2, 4, 1), [5]),
        (Image.new("P", (4, 2)), "RGBA", (2, 4, 4), [0, 0, 0, 255]),
        (Image.new("I;16", (4, 2), 3000), "RGB", (2, 4, 1), [3000]),
    ],
)
def test_modes(tmp_path, stored, mode, shape, first):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(saved(stored))
    (row,) = read_images(tmp_path, mode=mode)
    assert row["image"].shape == shape
    assert row["image"][0, 0].tolist() == first


def test_images_are_turned_as_their_exif_data_says(tmp_path):
    (tmp_path / "a").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "a" / "x.jpg").write_bytes(saved(Image.new("RGB", (40, 20)), "JPEG", exif=exif))
    (row,) = read_images(tmp_path)
    assert row["image"].shape == (40, 20, 3)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_bad_file_is_named_and_left_out(tmp_path, threads):
    paths = write(tmp_path, 12)
    paths[4].write_bytes(paths[4].read_bytes()[:50])
    paths[7].write_bytes(b"no image at all")
    stream = read_images(tmp_path, threads=threads)
    with pytest.raises(RecordError, match=rf"{paths[4].name}|{paths[7].name}"):
        list(stream)
    source, bad = stream.recipe.source, []
    kept = [row for block in source.blocks() for row in rows_of(source, block, on_bad=bad.append)]
    assert len(kept) == 10
    assert {record.where for record in bad} == {str(paths[4]), str(paths[7])}
    dataset = ImageFolder(tmp_path)
    with pytest.raises(RecordError, match=paths[7].name):
        [dataset[i] for i in range(12) if as_torchvision_lists(tmp_path)[1][i][0] == str(paths[7])]


def test_a_kept_listing_reads_only_folders_that_changed(tmp_path, monkeypatch):
    data, listing = tmp_path / "data", tmp_path / "listing.json"
    write(data)
    expected = [row["path"] for row in read_images(data)]
    read_images(data, listing=listing)
    scanned = []
    scandir = os.scandir
    monkeypatch.setattr(media.os, "scandir", lambda place: (scanned.append(str(place)), scandir(place))[1])
    assert [row["path"] for row in read_images(data, listing=listing)] == expected
    assert scanned == []
    Image.new("RGB", (3, 3)).save(data / "class9" / "new.png")
    os.utime(data / "class9", ns=(1, 1))  # whatever the clock's resolution
    assert len(list(read_images(data, listing=listing))) == 24
    assert scanned == [str(data / "class9")]
    listing.write_text("{damaged")
    assert len(list(read_images(data, listing=listing))) == 24


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_table_of_paths_and_labels(tmp_path, suffix):
    paths = write(tmp_path, 6)
    rows = [{"file": str(path.relative_to(tmp_path)), "kind": f"k{i % 2}"} for i, path in enumerate(paths)]
    table = tmp_path / f"table.{suffix}"
    text = "file,kind\n" + "".join(f"{row['file']},{row['kind']}\n" for row in rows)
    table.write_text("".join(json.dumps(row) + "\n" for row in rows) if suffix == "jsonl" else text)
    stream = read_images(tmp_path, table=table, path_column="file", label_column="kind")
    assert [(row["path"], row["label"]) for row in stream] == [(str(path), f"k{i % 2}") for i, path in enumerate(paths)]
    with pytest.raises(ValueError, match="'label'"):
        read_images(tmp_path, table=table, path_column="file")
    paths[0].unlink()
    with pytest.raises(FileNotFoundError, match=paths[0].name):
        read_images(tmp_path, table=table, path_column="file", label_column="kind")


def test_decoders_of_ones_own_and_wrong_arguments(tmp_path):
    write(tmp_path, 3)
    assert [row["image"] for row in read_images(tmp_path, decoder=len)] == [
        os.path.getsize(path) for path, _ in as_torchvision_lists(tmp_path)[1]
    ]
    for wrong in ({"decoder": "magic"}, {"mode": "CMYK"}, {"threads": 0}):
        with pytest.raises(ValueError, match="must be"):
            read_images(tmp_path, **wrong)
    with pytest.raises(FileNotFoundError, match="must be a folder"):
        read_images(tmp_path / "nowhere")


def test_sounds(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    for i in range(5):
        (tmp_path / f"k{i % 2}").mkdir(exist_ok=True)
        soundfile.write(tmp_path / f"k{i % 2}" / f"{i}.wav", np.full((100 + i, 2), i / 8), 8000, subtype="FLOAT")
    rows = list(read_audio(tmp_path, threads=2))
    assert [(row["audio"].shape, row["label"]) for row in rows][:3] == [((100, 2), 0), ((102, 2), 0), ((104, 2), 0)]
    assert rows[1]["audio"][0].tolist() == [0.25, 0.25]
    assert {row["sample_rate"] for row in rows} == {8000}
    (tmp_path / "k0" / "2.wav").write_bytes(b"RIFF")
    with pytest.raises(RecordError, match=r"2\.wav"):
        list(read_audio(tmp_path))
