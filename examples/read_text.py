"""Reads the lines of a directory of text files: shuffled, mapped to tokens, batched, and gone on with after a stop."""

import tempfile
from pathlib import Path

from headrace import DataLoader, pad_collate, read_text

N_FILES, N_LINES = 4, 25


def write_books(folder):
    for book in range(N_FILES):
        lines = [" ".join(["so"] * (line % 3 + 1) + [f"{book}/{line}"]) for line in range(N_LINES)]
        Path(folder, f"book-{book}.txt").write_text("\n".join(lines))


def tokens(line):
    """Each character as a number."""
    return list(line.encode())


def text_of(batch):
    """The lines of a padded batch."""
    rows = zip(batch.values.tolist(), batch.lengths.tolist(), strict=True)
    return [bytes(row[:length]).decode() for row, length in rows]


def make_loader(folder, **options):
    # Blocks are this small for the sake of the example; by default they are of megabytes.
    stream = read_text(folder, block_bytes=64).shuffle(blocks=8).map(tokens)
    return DataLoader(stream, batch_size=8, seed=3, collate_fn=pad_collate(), **options)


def main():
    with tempfile.TemporaryDirectory() as folder:
        write_books(folder)
        print(read_text(folder, block_bytes=64).shuffle(blocks=8).explain(workers=2))
        alone = [text_of(batch) for batch in make_loader(folder)]
        print("The first batch:", ", ".join(alone[0]))
        print("Lines:", len({line for batch in alone for line in batch}))
        with make_loader(folder, num_workers=2) as loader:
            print("Two workers give the same batches:", [text_of(batch) for batch in loader] == alone)
        stopped = make_loader(folder)
        batches = iter(stopped)
        for _ in range(5):
            next(batches)
        with make_loader(folder, num_workers=2) as resumed:
            resumed.load_state_dict(stopped.state_dict())
            print("Gone on after five batches:", [text_of(batch) for batch in resumed] == alone[5:])


if __name__ == "__main__":
    main()
