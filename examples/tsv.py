"""A TSV that is too large for memory: read in blocks, as columns, shuffled anew in each epoch, gone on with anywhere.

The usual way, `pandas.read_csv(path, sep="\\t", chunksize=1)`, reads one row at a time, and cannot be shuffled.
"""

import tempfile
from pathlib import Path

from headrace import DataLoader, read_csv

N_ROWS = 10_000


def write_table(path):
    rows = (f"{i}\ttext number {i}\t{i % 2}\n" for i in range(N_ROWS))
    path.write_text("id\ttext\tlabel\n" + "".join(rows))


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.tsv")
        write_table(path)
        table = read_csv(path, separator="\t", rows="columns", block_bytes=16_000)

        print("In the order of the file:")
        for batch, _ in zip(DataLoader(table, batch_size=3), range(2), strict=False):
            print(batch["id"], batch["text"], batch["label"])

        shuffled = DataLoader(table.shuffle(blocks=4), batch_size=100, seed=1)
        epochs = [[key for batch in shuffled for key in batch["id"].tolist()] for _ in range(2)]
        print("Shuffled, every row once in each epoch:", [sorted(ids) == list(range(N_ROWS)) for ids in epochs])
        print("Another order in each:", epochs[0] != epochs[1])

        stopped = DataLoader(table.shuffle(blocks=4), batch_size=100, seed=1)
        batches = iter(stopped)
        for _ in range(30):
            next(batches)
        with DataLoader(table.shuffle(blocks=4), batch_size=50, seed=1, num_workers=2) as resumed:
            resumed.load_state_dict(stopped.state_dict())
            rest = [key for batch in resumed for key in batch["id"].tolist()]
        print("Gone on after 30 batches, with two workers and another batch size:", rest == epochs[0][3000:])


if __name__ == "__main__":
    main()
