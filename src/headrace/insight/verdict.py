"""Why the model waits, and what to do about it: one paragraph, from the figures alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal, TypeAlias

from headrace.insight.figures import Figures, Setup
from headrace.insight.words import as_bytes, as_percent, as_time, as_workers

Kind: TypeAlias = Literal[
    "too few", "start", "hidden", "stragglers", "receive", "pin", "fetch", "collate", "pack", "loading only"
]

_FEWEST_TURNS = 8
_FEWEST_TURNS_WITH_STRAGGLERS = 20
_HIDDEN = 0.05  # of the loop's time
_MOSTLY = 0.5
_STALLED = 0.6  # of all waiting, in a tenth of the turns
_NO_MODEL = 50  # times that loading takes longer than the step, from where on nothing can hide it
_SPARE = 1.25  # more workers than just enough, for batches that take longer than others


@dataclass(frozen=True)
class Verdict:
    """What is the bottleneck, and the paragraph that says so."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        return self.text


def judge(figures: Figures, setup: Setup, slow_samples: Sequence[str] = ()) -> Verdict:
    """The verdict on a loader.

    Args:
        slow_samples: the slowest ones, in words, the slowest first.
    """
    if figures.turns < _FEWEST_TURNS:
        return Verdict("too few", f"Too few batches to tell: {figures.turns} after the first of an epoch.")
    kind = _kind(figures, setup)
    sentences = [f"The model waited {as_percent(figures.waited)} of the time."]
    match kind:
        case "start":
            sentences = _on_start(figures, setup)
        case "hidden":
            sentences += _on_hidden(figures, setup)
        case "stragglers":
            sentences += _on_stragglers(figures, setup, slow_samples)
        case "receive" | "pin":
            sentences += _on_arrival(kind, figures)
        case "loading only":
            sentences += [_on_no_model(figures, setup), _name_stage(_slowest_stage(figures), figures)]
        case _:
            sentences += [_name_stage(kind, figures), *_on_workers(figures, setup)]
    return Verdict(kind, " ".join(sentences))


def _kind(figures: Figures, setup: Setup) -> Kind:
    late = figures.wait + figures.pin
    if setup.workers and figures.ended and figures.started > _MOSTLY:
        return "start"
    if figures.waited < _HIDDEN:
        return "hidden"
    if figures.pin > _MOSTLY * late:
        return "pin"
    if setup.workers and figures.receive > _MOSTLY * late:
        return "receive"
    if _is_stalled(figures, setup):
        return "stragglers"
    if figures.work >= _NO_MODEL * figures.step:
        return "loading only"
    return _slowest_stage(figures)


def _is_stalled(figures: Figures, setup: Setup) -> bool:
    """Whether workers would be quick enough, if only all batches took as long as the average."""
    if not setup.workers or figures.turns < _FEWEST_TURNS_WITH_STRAGGLERS:
        return False
    return figures.stalls > _STALLED and figures.work < setup.workers * figures.step


def _slowest_stage(figures: Figures) -> Kind:
    stages: dict[Kind, float] = {"fetch": figures.fetch, "collate": figures.collate, "pack": figures.pack}
    return max(stages, key=stages.__getitem__)


def _name_stage(stage: Kind, figures: Figures) -> str:
    seconds = {"fetch": figures.fetch, "collate": figures.collate, "pack": figures.pack}[stage]
    share = f"({as_time(seconds)} of {as_time(figures.work)} per batch)"
    size = f" of {as_bytes(figures.n_bytes)}" if figures.n_bytes else ""
    return {
        "fetch": f"Fetching samples is the bottleneck {share}.",
        "collate": f"Collating samples into batches is the bottleneck {share}.",
        "pack": f"Packing up batches{size} is the bottleneck {share}: arrays are cheap to send, smaller types cheaper, "
        'and many small Python objects dear; engine="threads" sends nothing.',
    }[stage]


def _on_workers(figures: Figures, setup: Setup) -> list[str]:
    """How many workers would hide the loading."""
    needed = _needed(figures)
    machine = "1 core" if setup.cores == 1 else f"{setup.cores} cores"
    if needed <= setup.workers:
        return [_on_enough(figures, setup, machine)]
    would = f"{as_workers(needed)} would hide it"
    if figures.cpu < _MOSTLY:
        computes = "they compute" if setup.workers else "loading computes"
        return [f"{would}: {computes} only {as_percent(figures.cpu)} of that time (this machine has {machine})."]
    if needed <= setup.cores:
        return [f"{would} (this machine has {machine})."]
    return [f"{would}, but this machine has {machine}, so the work itself must become less, or be done beforehand."]


def _on_enough(figures: Figures, setup: Setup, machine: str) -> str:
    have = f"{as_workers(setup.workers)} should be enough"
    if setup.engine == "threads" and figures.cpu > _MOSTLY:
        return f'{have}, but threads compute in turns where Python holds the GIL: try engine="processes".'
    if setup.workers > setup.cores:
        return f"{have}, but share {machine} with each other and the model."
    return f"{have}: batches take unequal times, which a larger prefetch_factor bridges."


def _on_start(figures: Figures, setup: Setup) -> list[str]:
    sentences = [
        f"Starting took {as_percent(figures.started)} of the time: {as_time(figures.start)} until the first batch of "
        f"an epoch."
    ]
    if setup.persistent:
        return [*sentences, "Longer epochs would spread it."]
    return [*sentences, "persistent_workers=True starts the workers only once; longer epochs spread it, too."]


def _on_hidden(figures: Figures, setup: Setup) -> list[str]:
    times = f"a batch takes {as_time(figures.work)} to load, and the model's step {as_time(figures.step)}"
    if not setup.workers:
        return [f"Loading is no bottleneck: {times}."]
    needed = min(_needed(figures, _SPARE), setup.workers)
    fewer = f" {as_workers(needed).capitalize()} would do." if needed < setup.workers else ""
    return [f"Loading is hidden behind the model: {times}, on {as_workers(setup.workers)}.{fewer}"]


def _on_stragglers(figures: Figures, setup: Setup, slow_samples: Sequence[str]) -> list[str]:
    sentences = [
        f"A few slow batches hold up the others: the worst tenth makes {as_percent(figures.stalls)} of the waiting, "
        f"though {as_workers(setup.workers)} {'is' if setup.workers == 1 else 'are'} quick enough on average "
        f"({as_time(figures.work)} per batch)."
    ]
    if slow_samples:
        sentences.append(f"The slowest samples: {', '.join(slow_samples)}.")
    cure = "A larger prefetch_factor bridges longer gaps"
    return [*sentences, f"{cure}; in_order=False lets other batches go first." if setup.in_order else f"{cure}."]


def _on_arrival(kind: Kind, figures: Figures) -> list[str]:
    size = f" of {as_bytes(figures.n_bytes)}" if figures.n_bytes else ""
    late = as_time(figures.wait + figures.pin)
    if kind == "pin":
        return [
            f"Pinning batches{size}, or moving them to the device, is the bottleneck ({as_time(figures.pin)} of "
            f"{late} per batch): with workers, a thread of its own does that ahead of the loop."
        ]
    return [
        f"Receiving batches{size} is the bottleneck ({as_time(figures.receive)} of {late} per batch): they are ready, "
        "and are unpacked in the loop. Collate to few large arrays, send smaller types, and let go of batches that "
        'are done with; engine="threads" sends nothing.'
    ]


def _on_no_model(figures: Figures, setup: Setup) -> str:
    where = f"on {as_workers(setup.workers)}" if setup.workers else "in the loop itself"
    return f"It does next to nothing ({as_time(figures.step)} per batch), so only loading is measured, {where}."


def _needed(figures: Figures, spare: float = 1.0) -> int:
    """How many workers make batches as quickly as the model uses them."""
    return max(1, ceil(spare * figures.work / figures.step)) if figures.step else 1
