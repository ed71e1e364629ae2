"""Mixes streams by weights that change on the way, batches them, and goes on after a stop with other workers."""

import tempfile
from collections import Counter
from pathlib import Path

from headrace import DataLoader, mix, read_text


def write_books(folder):
    for name, n_lines in (("novels", 3000), ("poems", 1000), ("letters", 400)):
        Path(folder, f"{name}.txt").write_text("".join(f"{name} {i}\n" for i in range(n_lines)))


def make_loader(folder, **options):
    novels, poems, letters = (
        read_text(Path(folder, f"{name}.txt"), block_bytes=2000).shuffle(blocks=4)
        for name in ("novels", "poems", "letters")
    )
    # Letters come in after 2,000 lines. Streams that have ended start again, until each has ended once.
    weights = [(0, [3, 1, 0]), (2000, [3, 1, 1])]
    books = mix([novels, poems, letters], weights, stop="longest").map(str.upper)
    return DataLoader(books, batch_size=100, seed=7, **options)


def main():
    with tempfile.TemporaryDirectory() as folder:
        write_books(folder)
        batches = list(make_loader(folder))
        for at in (0, -2):
            names = Counter(line.split()[0] for line in batches[at])
            print("A batch at the beginning:" if at == 0 else "A batch near the end:", dict(sorted(names.items())))
        novels = {line for batch in batches for line in batch if line.startswith("NOVELS")}
        print("Different novels:", len(novels))

        stopped = make_loader(folder)
        running = iter(stopped)
        for _ in range(12):
            next(running)
        with make_loader(folder, num_workers=2) as resumed:
            resumed.load_state_dict(stopped.state_dict())
            print("Gone on with two workers:", list(resumed) == batches[12:])


if __name__ == "__main__":
    main()
