"""Sentences of similar length together: less padding, batches limited by tokens, and continuing after a stop."""

from itertools import islice

import numpy as np

from headrace import BatchSampler, BucketBatchSampler, DataLoader, RandomSampler, pad_collate, sample_lengths


def make_sentences(n):
    random = np.random.default_rng(0)
    lengths = random.lognormal(3, 0.7, n).astype(int) + 1
    return [random.integers(1, 1000, length) for length in lengths]


def tell(title, loader):
    """How many batches there are, how large, and how much of them is padding."""
    n_batches = filled = total = largest = 0
    for tokens, lengths in loader:
        n_batches += 1
        filled += int(np.asarray(lengths).sum())
        total += int(np.prod(tokens.shape))
        largest = max(largest, int(np.prod(tokens.shape)))
    print(f"{title}: {n_batches} batches, the largest of {largest} tokens, {1 - filled / total:.0%} padding")


def main():
    sentences = make_sentences(3200)
    lengths = sample_lengths(sentences)  # reads every sample; store the result if that takes long
    pad = pad_collate()

    shuffle = RandomSampler(sentences, generator=np.random.default_rng(0))
    at_random = BatchSampler(shuffle, batch_size=32, drop_last=False)
    tell("Random batches of 32", DataLoader(sentences, batch_sampler=at_random, collate_fn=pad))
    by_length = BucketBatchSampler(lengths, batch_size=32)
    tell("Similar lengths, 32", DataLoader(sentences, batch_sampler=by_length, collate_fn=pad))
    by_tokens = BucketBatchSampler(lengths, max_tokens=1000)
    tell("At most 1000 tokens", DataLoader(sentences, batch_sampler=by_tokens, collate_fn=pad))

    print("Stopped after 70 batches of the first epoch, continued in a new sampler:")
    stopped = BucketBatchSampler(lengths, batch_size=32)
    first = list(islice(stopped, 70))
    state = stopped.state_dict()
    continued = BucketBatchSampler(lengths, batch_size=32)
    continued.load_state_dict(state)
    seen = sorted(i for batch in first + list(continued) for i in batch)
    print("  state:", state)
    print("  every sentence came once:", seen == list(range(len(sentences))))


if __name__ == "__main__":
    main()
