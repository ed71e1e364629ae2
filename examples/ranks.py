"""Any sampler over several ranks, also over another number of them after a stop; and the proof that nothing was lost.

Here the ranks take turns in one process. In a real run, `shard="auto"` asks torch.distributed or the launcher for the
rank, and `torch.distributed.all_gather_object` brings the audits together.
"""

import numpy as np

from headrace import BucketBatchSampler, DataLoader, WeightedRandomSampler

LENGTHS = np.random.default_rng(0).integers(1, 30, 103)


def all_ranks(world, **options):
    return [DataLoader(range(103), shard=(rank, world), seed=1, **options) for rank in range(world)]


def run(loaders):
    """One epoch on every rank: the sizes of their batches, and their audits."""
    audits = [loader.audit() for loader in loaders]
    sizes = [[len(batch) for batch in loader] for loader in loaders]
    return sizes, audits


def print_even():
    for even in ("drop", "pad", "repeat", "allow"):
        sizes, audits = run(all_ranks(4, batch_size=10, shuffle=True, even=even))
        print(f"even={even!r}:", *("+".join(map(str, rank)) for rank in sizes))
        print(" ", audits[0].merge(audits[1:]).report())


def print_samplers():
    samplers = {
        "weighted": {"sampler": WeightedRandomSampler(LENGTHS, 103), "batch_size": 10},
        "bucketed": {"batch_sampler": BucketBatchSampler(LENGTHS, max_tokens=200)},
        "your own": {"sampler": list(range(102, -1, -1)), "batch_size": 10},
    }
    for name, options in samplers.items():
        _, audits = run(all_ranks(2, **options))
        whole = audits[0].merge(audits[1:])
        whole.check()
        print(f"{name}:", whole.report())


def print_elastic():
    """Two ranks stop after three batches; three others go on, each with the state of the first rank."""
    loaders = all_ranks(2, batch_size=10, shuffle=True, even="allow")
    parts, first = [], []
    for loader in loaders:
        audit = loader.audit()
        batches = iter(loader)
        first += [int(index) for _ in range(3) for index in next(batches)]
        state = loader.state_dict()
        parts.append(audit.state_dict())
    print("All ranks have had this many samples:", state["course"]["position"])

    loaders = all_ranks(3, batch_size=10, shuffle=True, even="allow")
    rest = []
    for loader in loaders:
        loader.load_state_dict(state)
        audit = loader.audit()
        rest += [int(index) for batch in loader for index in batch]
        parts.append(audit.state_dict())
    print("Every sample came once:", sorted(first + rest) == list(range(103)))
    print("The audit says so, too:", audit.merge(parts[:-1]).report())


def main():
    print_even()
    print_samplers()
    print_elastic()


if __name__ == "__main__":
    main()
