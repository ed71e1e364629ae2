"""What the seed documents promise, point by point, with their data and the results they print."""

from __future__ import annotations

from itertools import chain, cycle, islice

import numpy as np
import pytest

from headrace import (
    CollateError,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
    class_weights,
    get_worker_info,
    pad_collate,
)
from tests.needs import HAS_TORCH, as_lists

TWELVE = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
THREE_BATCHES = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


class MyMapDataset(Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, idx):
        return self.data[idx]


class MyIterableDataset(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)


# M1 · a streaming data loader


def test_m1_1_a_map_style_dataset_in_three_batches():
    batches = list(DataLoader(MyMapDataset(TWELVE), batch_size=4))
    assert as_lists(batches) == THREE_BATCHES
    assert {type(batch).__name__ for batch in batches} == {"Tensor" if HAS_TORCH else "ndarray"}


def test_m1_2_an_iterable_dataset_in_the_same_batches():
    assert as_lists(DataLoader(MyIterableDataset(TWELVE), batch_size=4)) == THREE_BATCHES


def test_m1_4_sequences_chained_into_one_endless_stream():
    class Chained(IterableDataset):
        def __init__(self, data_list):
            self.data_list = data_list

        def process_data(self, data):
            yield from data

        def get_stream(self, data_list):
            return chain.from_iterable(map(self.process_data, cycle(data_list)))

        def __iter__(self):
            return self.get_stream(self.data_list)

    data_list = [
        [12, 13, 14, 15, 16, 17],
        [27, 28, 29],
        [31, 32, 33, 34, 35, 36, 37, 38, 39],
        [40, 41, 42, 43],
    ]
    loader = DataLoader(Chained(data_list), batch_size=4)
    assert as_lists(islice(loader, 8)) == [
        [12, 13, 14, 15],
        [16, 17, 27, 28],
        [29, 31, 32, 33],
        [34, 35, 36, 37],
        [38, 39, 40, 41],
        [42, 43, 12, 13],
        [14, 15, 16, 17],
        [27, 28, 29, 31],
    ]


# M2 · Dataset and DataLoader


class CustomDataset(Dataset):
    def __init__(self, data):
        self.data = data

    def __getitem__(self, index):
        return self.data[index]


def test_m2_1_a_dataset_with_getitem_alone_can_be_iterated():
    dataset = CustomDataset([1, 2, 3, 4, 5])
    iterator = iter(dataset)
    assert (next(iterator), next(iterator)) == (1, 2)
    assert [i for i in dataset] == [1, 2, 3, 4, 5]  # noqa: C416 (the document's own words)
    assert list(map(lambda x: x + 1, dataset)) == [2, 3, 4, 5, 6]  # noqa: C417


def test_m2_5_a_callback_per_item(capsys):
    def custom_callback(data):
        print(f"{data} 입니다.")
        return data

    for i in DataLoader(MyMapDataset([1, 2, 3, 4, 5]), batch_size=None, collate_fn=custom_callback):
        print(i)
    assert capsys.readouterr().out.split("\n")[:-1] == [
        line for i in (1, 2, 3, 4, 5) for line in (f"{i} 입니다.", f"{i}")
    ]


# M3 · workers


def worker_id():
    worker = get_worker_info()
    return worker.id if worker is not None else -1


class MapWithWorker(MyMapDataset):
    def __getitem__(self, index):
        return self.data[index], worker_id()


class StreamWithWorker(MyIterableDataset):
    def __iter__(self):
        for x in self.data:
            yield x, worker_id()


@pytest.mark.parametrize("dataset", [MapWithWorker(range(16)), StreamWithWorker(range(16))], ids=["map", "iterable"])
def test_m3_3_the_main_process_has_worker_id_minus_one(dataset):
    printed = [as_lists(batch) for batch in DataLoader(dataset, batch_size=4, num_workers=0)]
    assert printed == [
        [[0, 1, 2, 3], [-1, -1, -1, -1]],
        [[4, 5, 6, 7], [-1, -1, -1, -1]],
        [[8, 9, 10, 11], [-1, -1, -1, -1]],
        [[12, 13, 14, 15], [-1, -1, -1, -1]],
    ]


# M4 · torch.utils.data in depth


def test_m4_1_random_access_or_only_next():
    map_style = MyMapDataset(TWELVE)
    assert as_lists(DataLoader(map_style, sampler=[7, 3, 3], batch_size=3)) == [[7, 3, 3]]
    iterable_style = MyIterableDataset(iter(TWELVE))  # what has been read is gone
    loader = DataLoader(iterable_style, batch_size=4)
    assert np.asarray(next(iter(loader))).tolist() == [0, 1, 2, 3]
    assert as_lists(loader) == THREE_BATCHES[1:]


@pytest.mark.parametrize("batch_size", [1, 4, 5, 12, 100])
def test_m4_2_the_batch_size_of_an_iterable_is_one_argument(batch_size):
    batches = as_lists(DataLoader(MyIterableDataset(TWELVE), batch_size=batch_size))
    assert batches == [TWELVE[i : i + batch_size] for i in range(0, 12, batch_size)]


def test_m4_3_sampler_and_batch_sampler_decide_the_order():
    class EvensFirst(Sampler):
        def __iter__(self):
            return iter([*range(0, 12, 2), *range(1, 12, 2)])

        def __len__(self):
            return 12

    dataset = MyMapDataset(TWELVE)
    loader = DataLoader(dataset, batch_size=4, sampler=EvensFirst())
    assert as_lists(loader) == [[0, 2, 4, 6], [8, 10, 1, 3], [5, 7, 9, 11]]
    assert as_lists(DataLoader(dataset, batch_sampler=[[3, 8, 1, 5], [9, 2, 0, 4]])) == [[3, 8, 1, 5], [9, 2, 0, 4]]


def test_m4_4_each_batch_is_padded_to_its_own_longest_item():
    sequences = [[1], [2, 2], [3, 3, 3], [4], [5, 5]]
    batches = list(DataLoader(sequences, batch_size=2, collate_fn=pad_collate()))
    assert as_lists(batch.values for batch in batches) == [[[1, 0], [2, 2]], [[3, 3, 3], [4, 0, 0]], [[5, 5]]]
    assert as_lists(batch.lengths for batch in batches) == [[1, 2], [3, 1], [2]]


def test_m4_5_batching_off_means_collate_fn_per_sample():
    dataset, sampler = MyMapDataset(TWELVE), [5, 2]
    loader = DataLoader(dataset, batch_size=None, sampler=sampler, collate_fn=lambda sample: sample * 10)
    assert list(loader) == [50, 20]
    assert list(DataLoader(MyIterableDataset("ab"), batch_size=None, collate_fn=str.upper)) == ["A", "B"]


# M5 · DataLoader deep dive


def test_m5_1_the_defaults():
    loader = DataLoader(MyMapDataset(TWELVE))
    assert as_lists(loader) == [[i] for i in TWELVE]
    assert (loader.batch_size, loader.drop_last, loader.num_workers, loader.pin_memory) == (1, False, 0, False)
    assert (loader.timeout, loader.worker_init_fn, loader.multiprocessing_context) == (0, None, None)
    assert (loader.generator, loader.prefetch_factor, loader.persistent_workers) == (None, None, False)
    assert (loader.pin_memory_device, loader.in_order) == ("", True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": [0], "shuffle": True}, "sampler option is mutually exclusive with shuffle"),
        *(
            ({"batch_sampler": [[0]], **other}, "batch_sampler option is mutually exclusive with batch_size, shuffle")
            for other in ({"batch_size": 2}, {"shuffle": True}, {"sampler": [0]}, {"drop_last": True})
        ),
    ],
)
def test_m5_1_each_wrong_mix_is_a_clear_error(options, words):
    with pytest.raises(ValueError, match=words):
        DataLoader(MyMapDataset(TWELVE), **options)


def test_m5_2_shuffle_is_new_every_epoch_and_without_it_the_order_is_always_the_same():
    dataset = MyMapDataset(list(range(100)))
    shuffled = DataLoader(dataset, batch_size=100, shuffle=True)
    epochs = [as_lists(shuffled)[0] for _ in range(5)]
    assert len(set(map(tuple, epochs))) == 5
    assert all(sorted(epoch) == dataset.data for epoch in epochs)
    in_order = DataLoader(dataset, batch_size=100, shuffle=False)
    assert [as_lists(in_order)[0] for _ in range(3)] == [dataset.data] * 3


def test_m5_3_drop_last():
    dataset = MyMapDataset(TWELVE[:10])
    assert [len(batch) for batch in DataLoader(dataset, batch_size=4)] == [4, 4, 2]
    assert [len(batch) for batch in DataLoader(dataset, batch_size=4, drop_last=True)] == [4, 4]


VARIABLE_LENGTH = [np.random.default_rng(0).normal(size=(n, 2)) for n in (3, 5, 2)]


def test_m5_5_variable_lengths_are_sorted_and_padded():
    loader = DataLoader(MyMapDataset(VARIABLE_LENGTH), batch_size=3, collate_fn=pad_collate(sort=True))
    (batch,) = loader
    padded_sequences, lengths = batch
    assert tuple(padded_sequences.shape) == (3, 5, 2)
    assert np.asarray(lengths).tolist() == [5, 3, 2]
    for row, i in zip(np.asarray(padded_sequences), (1, 0, 2), strict=True):
        sequence = VARIABLE_LENGTH[i]
        np.testing.assert_array_equal(row[: len(sequence)], sequence)
        assert (row[len(sequence) :] == 0).all()


def test_m5_5_without_padding_the_error_names_the_shapes_and_the_cure():
    with pytest.raises(CollateError, match=r"\(3, 2\).*\(5, 2\).*\(2, 2\).*pad_collate") as caught:
        list(DataLoader(MyMapDataset(VARIABLE_LENGTH), batch_size=3))
    assert isinstance(caught.value, RuntimeError)


IMBALANCED_LABELS = np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, 1])


def test_m5_6_sequential_and_random_sampler():
    dataset = MyMapDataset(TWELVE)
    sequential = DataLoader(dataset, batch_size=2, sampler=SequentialSampler(dataset))
    assert as_lists(sequential) == as_lists(sequential) == [TWELVE[i : i + 2] for i in range(0, 12, 2)]
    shuffled = DataLoader(dataset, batch_size=12, sampler=RandomSampler(dataset))
    epochs = {tuple(as_lists(shuffled)[0]) for _ in range(10)}
    assert len(epochs) > 5
    assert {tuple(sorted(epoch)) for epoch in epochs} == {tuple(TWELVE)}


def test_m5_6_eight_to_two_classes_come_out_fifty_fifty():
    weights = class_weights(IMBALANCED_LABELS)
    assert np.bincount(IMBALANCED_LABELS).tolist() == [8, 2]
    assert weights.tolist() == [0.125] * 8 + [0.5] * 2
    sampler = WeightedRandomSampler(weights, num_samples=10, replacement=True, generator=np.random.default_rng(7))
    dataset = TensorDataset(np.arange(10, dtype=np.float32), IMBALANCED_LABELS)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    drawn = np.concatenate([np.asarray(label) for _ in range(2000) for _, label in loader])
    assert len(drawn) == 20_000
    assert abs(drawn.mean() - 0.5) < 0.014  # four standard deviations


def test_m5_6_within_a_class_every_sample_has_the_same_chance():
    sampler = WeightedRandomSampler(class_weights(IMBALANCED_LABELS), 40_000, generator=np.random.default_rng(7))
    share = np.bincount(list(sampler), minlength=10) / 40_000
    assert np.allclose(share, [0.0625] * 8 + [0.25] * 2, atol=0.009)
