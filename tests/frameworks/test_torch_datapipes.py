"""DataPipes: seeded alike in all workers, and each worker has its share."""

from __future__ import annotations

import pytest

from headrace import DataLoader
from tests.needs import HAS_TORCH, needs_torch

pytestmark = [needs_torch, pytest.mark.filterwarnings("ignore:.*DataPipe.*:", "ignore:.*datapipe.*:")]

if HAS_TORCH:
    import torch

    from headrace.frameworks import torch_datapipes


def pipe(n, *, shuffle=True):
    source = torch.utils.data.datapipes.iter.IterableWrapper(range(n))
    return (source.shuffle() if shuffle else source).sharding_filter()


def test_a_seed_decides_the_order_of_a_graph():
    def order(seed):
        graph = pipe(20)
        torch_datapipes.seed_graph(graph, seed)
        return list(graph)

    assert order(1) == order(1) != order(2)


def test_an_epoch_draws_one_seed_from_the_generator_and_returns_it():
    graph, generator = pipe(20), torch.Generator().manual_seed(3)
    seed = torch_datapipes.begin_epoch(graph, generator, shard=True)
    expected = torch.Generator().manual_seed(3)
    assert seed == torch.empty((), dtype=torch.int64).random_(generator=expected).item()
    assert generator.get_state().equal(expected.get_state())
    first = list(graph)
    torch_datapipes.seed_graph(graph, seed)
    assert list(graph) == first


def test_without_workers_a_rank_has_its_share():
    graph = pipe(10, shuffle=False)
    torch_datapipes.begin_epoch(graph, None, shard=True)
    assert list(graph) == list(range(10))


def test_the_users_own_init_function_comes_first():
    told = []

    class StopError(Exception):
        pass

    def init(worker):
        told.append(worker)
        raise StopError

    with pytest.raises(StopError):
        torch_datapipes.sharding_init(init)(3)
    assert told == [3]


@pytest.mark.parametrize("options", [{"engine": "threads"}, {"multiprocessing_context": "fork"}])
@pytest.mark.parametrize("shuffle", [True, False])
def test_workers_share_a_pipe_without_gaps_or_doubles(options, shuffle):
    loader = DataLoader(pipe(20), batch_size=3, shuffle=shuffle, num_workers=2, **options)
    epochs = [[i for batch in loader for i in batch.tolist()] for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(20))] * 2
    assert (epochs[0] != epochs[1]) is shuffle


def epochs_of(*, kills, tmp_path):
    torch.manual_seed(0)
    graph = pipe(30).map(Deadly(tmp_path / "killed" if kills else None))
    options = {"persistent_workers": True, "on_worker_death": "restart", "multiprocessing_context": "fork"}
    loader = DataLoader(graph, batch_size=2, num_workers=2, shuffle=True, **options)
    epochs = []
    for epoch in range(3):
        if kills and epoch == 1:
            (tmp_path / "killed").touch()
        epochs.append([batch.tolist() for batch in loader])
    loader.close()
    return epochs


class Deadly:
    """Kills its worker at one sample, once, after the file is there."""

    def __init__(self, path):
        self.path = path

    def __call__(self, sample):
        import os
        import signal

        if self.path is not None and sample == 17 and self.path.exists():
            self.path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return sample


@pytest.mark.filterwarnings("ignore:DataLoader worker .* exited unexpectedly")
def test_a_worker_that_is_replaced_in_a_later_epoch_goes_on_in_that_epochs_order(tmp_path):
    assert epochs_of(kills=True, tmp_path=tmp_path) == epochs_of(kills=False, tmp_path=tmp_path)
