"""Why the model waits, and what to do about it: one paragraph, from the figures alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from headrace.insight.figures import Figures, LoaderKind, Setup, figures_of
from headrace.insight.nodes import describe_nodes
from headrace.insight.recorder import Recorder, SlowSample, plain_key

_FEWEST_TURNS = 8
_FEWEST_TURNS_WITH_STRAGGLERS = 20
_HIDDEN = 0.05  # of the loop's time
_HIDDEN_LATER = 0.2  # of the loop's time, if nearly all of it was before the first batch
_MOSTLY = 0.5
_STALLED = 0.6  # of all waiting, in a tenth of the turns
_NO_MODEL = 50  # times that loading takes longer than the step, from where on nothing can hide it
_SPARE = 1.25  # more workers than just enough, for batches that take longer than others
_MOST_NAMED = 3  # samples
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))

_READING: dict[LoaderKind, str] = {
    "map": "Reading",
    "iterable": "Reading",
    "stream": "Reading the stream",
    "multistream": "Reading the sequences",
}
_DOING = {
    "fetch": "Fetching samples",
    "shuffle": "Shuffling",
    "collate": "Collating samples into batches",
    "send": "Sending batches",
}
_BY_ROW = ("map", "filter", "flat_map")  # steps of a stream that call Python for each row


@dataclass(frozen=True)
class Verdict:
    """What is the bottleneck, and the paragraph that says so.

    Attributes:
        kind: the stage that is the bottleneck, or "too few", "start", "hidden", "stragglers", "receive", "pin",
            "loading only".
    """

    kind: str
    text: str

    def __str__(self) -> str:
        return self.text


def verdict_of(recorder: Recorder, setup: Setup, epoch: int | None = None) -> Verdict:
    """What the times of a loader say."""
    slow = slow_samples(recorder, epoch)[:_MOST_NAMED]
    named = [f"{_name(sample)} ({as_time(sample.ns * 1e-9)})" for sample in slow if 2 * sample.ns > slow[0].ns]
    verdict = judge(figures_of(recorder, epoch), setup, named)
    if recorder.nodes is None or verdict.kind in ("too few", "hidden"):
        return verdict
    return Verdict(verdict.kind, " ".join([verdict.text, *describe_nodes(recorder.nodes)]))


def slow_samples(recorder: Recorder, epoch: int | None) -> list[SlowSample]:
    """The slowest samples of all epochs, or of one."""
    return [sample for sample in recorder.slow_samples() if epoch in (None, sample.epoch)]


def _name(sample: SlowSample) -> str:
    if sample.key is None:
        return f"number {sample.position} of batch {sample.number}"
    return str(plain_key(sample.key))


def judge(figures: Figures, setup: Setup, slow_samples: Sequence[str] = ()) -> Verdict:
    """The verdict on a loader.

    Args:
        slow_samples: the slowest ones, in words, the slowest first.
    """
    if figures.turns < _FEWEST_TURNS:
        return Verdict("too few", f"Too few batches to tell: {figures.turns} after the first of an epoch.")
    kind = _kind(figures, setup)
    sentences = [_on_waiting(figures)]
    match kind:
        case "start":
            sentences = _on_start(figures, setup)
        case "hidden":
            sentences += _on_hidden(figures, setup)
        case "stragglers":
            sentences += _on_stragglers(figures, setup, slow_samples)
        case "receive" | "pin":
            sentences += _on_arrival(kind, figures, setup)
        case "loading only":
            sentences += [_on_no_model(figures, setup), _on_stage(_slowest_stage(figures), figures, setup)]
        case _:
            sentences += [_on_stage(kind, figures, setup), *_on_workers(figures, setup), *_on_step(kind, figures)]
    return Verdict(kind, " ".join(sentences))


def _kind(figures: Figures, setup: Setup) -> str:
    if figures.ended and figures.started > _MOSTLY:
        return "start"
    if figures.waited < _HIDDEN or (_was_late_once(figures) and figures.waited < _HIDDEN_LATER):
        return "hidden"
    if _was_late_once(figures):
        is_starting = figures.starting + figures.stopping > _MOSTLY * (figures.start + figures.stopping)
        return ("start" if figures.ended else "hidden") if is_starting else _slowest_stage(figures)
    if figures.pin > _MOSTLY * figures.late:
        return "pin"
    if setup.workers and figures.receive > _MOSTLY * figures.late:
        return "receive"
    if _is_stalled(figures, setup):
        return "stragglers"
    if figures.work >= _NO_MODEL * figures.step:
        return "loading only"
    return _slowest_stage(figures)


def _was_late_once(figures: Figures) -> bool:
    """Whether the loop waited at the beginning and the end of epochs, but hardly in between."""
    return figures.waited_later < _HIDDEN <= figures.waited


def _is_stalled(figures: Figures, setup: Setup) -> bool:
    """Whether workers would be quick enough, if only all batches took as long as the average."""
    if not setup.workers or figures.turns < _FEWEST_TURNS_WITH_STRAGGLERS or figures.ready is None:
        return False
    return figures.stalls > _STALLED and figures.work < setup.workers * figures.step


def _slowest_stage(figures: Figures) -> str:
    return max(figures.stages, key=lambda stage: figures.stages[stage], default="fetch")


def _on_waiting(figures: Figures) -> str:
    text = f"The model waited {as_percent(figures.waited)} of the time"
    if _was_late_once(figures):
        text += f", nearly all of it for the first batch of an epoch ({as_time(figures.start)})"
        text += (
            f" and to stop the workers ({as_time(figures.stopping)})" if figures.stopping > figures.start / 10 else ""
        )
    return f"{text}."


def _on_stage(stage: str, figures: Figures, setup: Setup) -> str:
    doing = _READING[setup.kind] if stage == "read" else _DOING.get(stage, f"{stage}()")
    if stage == "send" and figures.n_bytes:
        doing += f" of {as_bytes(figures.n_bytes)}"
    seconds = f"({as_time(figures.stages.get(stage, 0.0))} of {as_time(figures.work)} per batch)"
    text = f"{doing} is the bottleneck {seconds}"
    if stage != "send":
        return f"{text}."
    return (
        f"{text}: arrays are cheap to send, smaller types cheaper, and many small Python objects dear; "
        'engine="threads" sends nothing.'
    )


def _on_step(stage: str, figures: Figures) -> list[str]:
    """What would make a step of a stream quicker."""
    if stage in _BY_ROW and figures.cpu > _MOSTLY:
        return [f"map_batches() does with whole columns what {stage}() does row by row."]
    return []


def _on_workers(figures: Figures, setup: Setup) -> list[str]:
    """How many workers would hide the loading."""
    needed = _needed(figures)
    machine = "1 core" if setup.cores == 1 else f"{setup.cores} cores"
    if _was_late_once(figures):
        return [f"After that, {as_workers(setup.workers)} keep up." if setup.workers else "After that, it keeps up."]
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
    if setup.kind == "stream":
        return f"{have}, but each works on a block at a time: smaller blocks are dealt out more evenly."
    return f"{have}: batches take unequal times, which a larger prefetch_factor bridges."


def _on_start(figures: Figures, setup: Setup) -> list[str]:
    sentences = [
        f"The model waited {as_percent(figures.waited)} of the time. Starting and stopping took "
        f"{as_percent(figures.started)} of all time: {as_time(figures.starting)} until work on the first batch of an "
        f"epoch began, {as_time(figures.stopping)} after its last."
    ]
    if setup.persistent or not setup.workers:
        return [*sentences, "Longer epochs would spread it."]
    return [*sentences, "persistent_workers=True starts the workers only once; longer epochs spread it, too."]


def _on_hidden(figures: Figures, setup: Setup) -> list[str]:
    times = f"a batch takes {as_time(figures.work)} to load, and the model's step {as_time(figures.step)}"
    after = "After that, loading" if _was_late_once(figures) else "Loading"
    if not setup.workers:
        return [f"{after} is no bottleneck: {times}."]
    needed = min(_needed(figures, _SPARE), setup.workers)
    fewer = f" {as_workers(needed).capitalize()} would do." if needed < setup.workers else ""
    return [f"{after} is hidden behind the model: {times}, on {as_workers(setup.workers)}.{fewer}"]


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


def _on_arrival(kind: str, figures: Figures, setup: Setup) -> list[str]:
    size = f" of {as_bytes(figures.n_bytes)}" if figures.n_bytes else ""
    late = as_time(figures.late)
    if kind == "pin":
        return [
            f"Pinning batches{size}, or moving them to the device, is the bottleneck ({as_time(figures.pin)} of "
            f"{late} per batch): with workers, a thread of its own does that ahead of the loop."
        ]
    receiving = f"Receiving batches{size} is the bottleneck ({as_time(figures.receive)} of {late} per batch)"
    if setup.engine == "threads":
        return [
            f"{receiving}: they are ready, but the loop has to wait until it may run. Work that does not release the "
            'GIL holds it up, and so does a busy machine; engine="processes" leaves the GIL to the loop.'
        ]
    return [
        f"{receiving}: they are ready, and are unpacked in the loop. Collate to few large arrays, send smaller types, "
        'and drop batches that you are done with; engine="threads" sends nothing.'
    ]


def _on_no_model(figures: Figures, setup: Setup) -> str:
    where = f"on {as_workers(setup.workers)}" if setup.workers else "in the loop itself"
    return f"It does next to nothing ({as_time(figures.step)} per batch), so only loading is measured, {where}."


def _needed(figures: Figures, spare: float = 1.0) -> int:
    """How many workers make batches as quickly as the model uses them."""
    return max(1, ceil(spare * figures.work / figures.step)) if figures.step else 1


def as_row(worker: int, workers: int, place: str | None = None) -> str:
    """Who loads: a worker, and on which node if there are several, or the loop itself.

    Examples:
        >>> as_row(1, 2), as_row(0, 0)
        ('worker 1', 'loading')
    """
    if worker < 0:
        return "the loop"
    where = "" if place is None else f" on node {place}"
    return f"worker {worker}{where}" if workers else "loading"


def as_time(seconds: float) -> str:
    """Three digits at most, with a unit.

    Examples:
        >>> as_time(0.00812), as_time(12.3456), as_time(0)
        ('8.12 ms', '12.3 s', '0 s')
    """
    return _with_unit(seconds, _TIMES, "0 s")


def as_bytes(n_bytes: float) -> str:
    """The same for a size.

    Examples:
        >>> as_bytes(38_535_168)
        '38.5 MB'
    """
    return _with_unit(n_bytes, _SIZES, "0 B")


def as_percent(share: float) -> str:
    """A share, in whole percents unless it is less than one.

    Examples:
        >>> as_percent(0.414), as_percent(0.0042)
        ('41 %', '0.4 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.0095 or not share else f"{100 * share:.1g} %"


def as_count(n: float) -> str:
    """A number, whole unless it is small.

    Examples:
        >>> as_count(1234567), as_count(0.5)
        ('1,234,567', '0.5')
    """
    return f"{n:,.0f}" if n >= 10 or n == int(n) else f"{n:.2g}"


def as_workers(n: int) -> str:
    return "1 worker" if n == 1 else f"{n:,} workers"


def as_batches(n: float) -> str:
    return "1 batch" if n == 1 else f"{as_count(n)} batches"


def _with_unit(value: float, units: tuple[tuple[float, str], ...], nothing: str) -> str:
    for size, unit in units:
        if value >= size:
            shown = value / size
            return f"{shown:.0f} {unit}" if shown >= 99.95 else f"{shown:.3g} {unit}"
    return nothing
