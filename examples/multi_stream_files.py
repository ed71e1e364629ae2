"""Files as streams side by side, in three ways: one from many offsets, in groups, or all of them in many orders.

Nothing is loaded as a whole. A training that was stopped goes on in the middle of all files.
"""

import json
import tempfile
from itertools import islice
from pathlib import Path

from headrace import MultiStreamDataLoader, read_text

POEMS = {
    "tide.txt": "the tide comes in\nthe tide goes out\nand so do we\n",
    "rain.txt": "rain on the roof\nrain on the road\n",
    "mill.txt": "the wheel turns\nthe stone turns\nthe flour falls\nand the miller sleeps\n",
}


def tokens_of(path):
    """The words of a file, one line at a time."""
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            yield from line.split()


def print_positions(title, loader, n=8):
    print(title)
    with loader:
        for position in zip(*islice(loader, n), strict=True):
            print("  ", *position)


def print_resumed(paths):
    loader = MultiStreamDataLoader(paths, batch_size=2, read=tokens_of)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    state = json.dumps(loader.state_dict())
    rest = list(islice(batches, 20))

    with MultiStreamDataLoader(paths, batch_size=2, read=tokens_of, num_workers=2) as other:
        other.load_state_dict(json.loads(state))
        print("Stopped after 5 steps, gone on with two workers, the same:", list(islice(other, 20)) == rest)


def main():
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in POEMS]
        for path in paths:
            path.write_text(POEMS[path.name], encoding="utf-8")

        loader = MultiStreamDataLoader(paths[2], batch_size=3, read=tokens_of, assign="offset")
        print_positions("(a) One file, from different offsets:", loader)

        loader = MultiStreamDataLoader(paths, batch_size=2, read=tokens_of, assign="partition")
        print_positions("(b) Files in groups:", loader)

        loader = MultiStreamDataLoader(paths, batch_size=2, read=tokens_of)
        print_positions("(c) All files in every position, each in its own order:", loader)

        stream = read_text(paths, block_bytes=16).flat_map(str.split)
        loader = MultiStreamDataLoader(stream, batch_size=3, assign="offset", num_workers=2)
        print_positions("A stream from different blocks, which are read when they are needed:", loader)

        print_resumed(paths)


if __name__ == "__main__":
    main()
