"""Documents of any length packed into rows of one length for a language model, with nothing lost where rows end."""

import numpy as np

from headrace import CollateError, DataLoader, pack_collate, unpack_sequences

DOCUMENTS = [[11, 12, 13, 14, 15], [21, 22], [31, 32, 33, 34, 35, 36, 37], [41, 42, 43]]


def show(title, batch):
    print(title)
    for name in ("tokens", "segments", "positions", "targets"):
        print(f"  {name}:", *np.asarray(getattr(batch, name)).tolist())
    print("  cu_seqlens:", np.asarray(batch.cu_seqlens).tolist())


def main():
    for split in (True, False):
        collate = pack_collate(8, split=split, targets=True, cu_seqlens=True)
        [batch] = DataLoader(DOCUMENTS, batch_size=4, collate_fn=collate)
        show("Cut where a row is full:" if split else "Whole documents:", batch)
        documents = [document.tolist() for document in unpack_sequences(batch)]
        print("  unpacked, they are the documents:", documents == DOCUMENTS)

    print("A sample with other fields:")
    samples = [{"tokens": document, "source": "web"} for document in DOCUMENTS]
    try:
        pack_collate(8, field="tokens")(samples)
    except CollateError as error:
        print(f"  CollateError: {error}")
    batch = pack_collate(8, field="tokens", drop_others=True)(samples)
    print("  with drop_others=True:", tuple(batch.tokens.shape))

    print("Rows of 2048 tokens of 200 documents:")
    random = np.random.default_rng(0)
    documents = [random.integers(1, 50_000, length) for length in random.lognormal(6, 0.8, 200).astype(int)]
    for split in (True, False):
        segments = np.asarray(pack_collate(2048, split=split)(documents).segments)
        print(f"  split={split}: {len(segments)} rows, {(segments == 0).mean():.1%} padding")


if __name__ == "__main__":
    main()
