"""A language model's batches from raw JSON lines: tokenised, mixed by tokens from three sources, packed, resumed."""

import gzip
import json
import tempfile
from itertools import islice
from pathlib import Path

from headrace import DataLoader, mix, read_jsonl

SOURCES = {"web": 900, "books": 150, "code": 300}
END = 0


def write_corpus(folder):
    for name, n_documents in SOURCES.items():
        with gzip.open(Path(folder, f"{name}.jsonl.gz"), "wt") as file:
            for i in range(n_documents):
                file.write(json.dumps({"text": f"{name} " * (1 + i * 7 % (80 if name == "books" else 20))}) + "\n")


def tokenise(row):
    return [*(ord(word[0]) for word in row["text"].split()), END]  # a real tokeniser goes here


def make_loader(folder, weights, **options):
    sources = [read_jsonl(Path(folder, f"{name}.jsonl.gz")).shuffle().map(tokenise) for name in SOURCES]
    mixed = mix(sources, weights, draw="tokens", stop="longest")
    return DataLoader(mixed.pack(128, segments=True), batch_size=8, seed=7, **options)


def shares(batches):
    tokens = [token for batch in batches for token in batch["tokens"].ravel().tolist() if token != END]
    return {name: f"{tokens.count(ord(name[0])) / len(tokens):.0%}" for name in SOURCES}


def main():
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(folder)
        loader = make_loader(folder, [5, 3, 2])
        batches = iter(loader)
        first = list(islice(batches, 6))
        print("A batch:", {name: tuple(column.shape) for name, column in first[0].items()})
        print("Shares of the tokens:", shares(first))

        state = json.loads(json.dumps(loader.state_dict()))
        rest = [batch["tokens"].tolist() for batch in batches]
        with make_loader(folder, [5, 3, 2], num_workers=2) as resumed:
            resumed.load_state_dict(state)
            print("Resumed with two workers:", [batch["tokens"].tolist() for batch in resumed] == rest)

        reweighed = make_loader(folder, [1, 1, 8])
        reweighed.load_state_dict(state)
        print("With other weights, the last batches:", shares(list(reweighed)[-6:]))


if __name__ == "__main__":
    main()
