"""A text file as an endless stream of tokens, read a piece at a time, so that it may be larger than memory."""

import tempfile
from itertools import islice
from pathlib import Path

from headrace import DataLoader, read_text

TEXT = """the quick brown fox
jumps over the lazy dog
and runs into the
deep dark wood
"""


def tokens(line):
    return line.split(" ")


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.txt")
        path.write_text(TEXT)
        stream = read_text(path).flat_map(tokens).repeat()  # after the last token, the first one comes again
        print("Batches of 5, eight of them:")
        for batch in islice(DataLoader(stream, batch_size=5), 8):
            print(batch)
        with DataLoader(stream, batch_size=5, num_workers=2) as loader:
            same = list(islice(loader, 8)) == list(islice(DataLoader(stream, batch_size=5), 8))
        print("Two workers give the same batches:", same)


if __name__ == "__main__":
    main()
