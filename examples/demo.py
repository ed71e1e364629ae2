"""The main examples, one after the other, with the batches they print.

Works without torch too; batches are NumPy arrays then.
"""

import importlib.util
import time

import map_and_iterable
import padding
import samplers


def heading(text):
    print(f"\n{text}\n{'-' * len(text)}")


def main():
    started = time.perf_counter()
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed, so batches are NumPy arrays. For tensors: pip install 'headrace[torch]'")

    heading("Two kinds of dataset, the same batches")
    map_and_iterable.main()

    heading("Sequences of different lengths")
    padding.main()

    heading("Classes of 8 and 2 samples, drawn equally")
    samplers.balanced_classes()

    print(f"\nDone in {time.perf_counter() - started:.1f} s. More in examples/ and docs/.")


if __name__ == "__main__":
    main()
