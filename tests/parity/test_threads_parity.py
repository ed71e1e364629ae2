"""Workers that are threads give the batches of no workers at all, and for streams those of processes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from hypothesis import assume, given
from hypothesis import strategies as st

import headrace

from . import orders, sources
from .equality import fingerprint
from .exploring import explore
from .test_loader_parity import collate_options, collations, seeds
from .traces import Setting, Step, compare_traces, few_epochs, trace

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:The given NumPy array is not writable"),
]

lengths = st.integers(0, 14)
batch_sizes = st.none() | st.integers(1, 5) | st.just(20)
thread_options = st.fixed_dictionaries(
    {
        "num_workers": st.integers(1, 4),
        "persistent_workers": st.booleans(),
        "prefetch_factor": st.sampled_from([None, 1, 2, 5]),
    }
)


@explore(100)
@given(st.data(), lengths, batch_sizes, st.booleans(), seeds, collations, thread_options, few_epochs)
def test_map_datasets(
    data: st.DataObject,
    n: int,
    batch_size: int | None,
    shuffle: bool,
    seed: int | None,
    collation: str,
    threads: dict[str, Any],
    plan: list[Step],
) -> None:
    source = data.draw(sources.quiet_sources(n), label="dataset")

    def results(options: dict[str, Any]) -> list[Any]:
        setting = Setting(headrace)

        def build(setting: Setting) -> Any:
            return headrace.DataLoader(
                source.build(headrace),
                batch_size,
                shuffle,
                generator=setting.new_generator(seed),
                **collate_options(collation, setting, batch_size),
                **options,
            )

        seen = trace(build, setting, plan)
        return [(name, result) for name, result, _ in seen if name != "attributes"]

    if shuffle:  # workers draw an order ahead, for an epoch that is left at once too; and if they stay, no seeds
        plan = [Step("start", 0), Step("drain", 0)] * len(plan[:2])
        threads = {**threads, "persistent_workers": False}
    compare_traces(results({}), results({"engine": "threads", **threads}))


@explore(50)
@given(st.data(), lengths, st.booleans(), thread_options)
def test_samplers(data: st.DataObject, n: int, in_order: bool, threads: dict[str, Any]) -> None:
    source = data.draw(sources.quiet_sources(n), label="dataset")
    order = data.draw(orders.batch_samplers(n), label="batch sampler")
    dataset = source.build(headrace)
    assume(orders.can_be_read(order, dataset))
    batches = list(order.build(headrace, dataset, None))

    def results(**options: Any) -> list[str]:
        try:
            found = [
                repr(fingerprint(batch)) for batch in headrace.DataLoader(dataset, batch_sampler=batches, **options)
            ]
        except Exception as error:  # noqa: BLE001 (its type is compared)
            return [type(error).__name__]
        return found if in_order else sorted(found)

    assert results(engine="threads", in_order=in_order, **threads) == results()


@explore(20)
@given(st.data(), lengths, batch_sizes, thread_options, few_epochs)
def test_streams(
    data: st.DataObject, n: int, batch_size: int | None, threads: dict[str, Any], plan: list[Step]
) -> None:
    source = data.draw(
        sources.worker_streams(n, ("none", "headrace's worker"), sources.SHARES_FOR_THREADS), label="dataset"
    )

    def results(engine: str) -> list[Any]:
        def build(setting: Setting) -> Any:
            return headrace.DataLoader(source.build(headrace), batch_size, engine=engine, **threads)

        return trace(build, Setting(headrace, exact_strides=False), plan)

    compare_traces(results("processes"), results("threads"))
