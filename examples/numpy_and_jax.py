"""The same loader delivers torch tensors, NumPy arrays or JAX arrays: one argument, `output`."""

import numpy as np

from headrace import DataLoader, Dataset, MissingExtraError, pad_collate


class Sentences(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"tokens": np.arange(index + 1, dtype=np.int32), "score": np.float32(index / 2)}


def main():
    for output in ("torch", "numpy", "jax"):
        print(f'output="{output}":')
        try:
            loader = DataLoader(Sentences(), batch_size=4, collate_fn=pad_collate(lengths=False), output=output)
        except MissingExtraError as error:
            print(f"  {error}")
            continue
        for name, values in next(iter(loader)).items():
            print(f"  {name}: {type(values).__name__}, shape {tuple(values.shape)}, dtype {values.dtype}")


if __name__ == "__main__":
    main()
