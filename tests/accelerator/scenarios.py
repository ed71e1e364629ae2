"""Loops over loaders with `device=` on the software accelerator; each runs in a process of its own.

Every batch is full of its own number. The loop has the device look at each, as late as the device happens to be, and
compares what was seen in the end. `python -m tests.accelerator.scenarios NAME` prints what went wrong, as JSON.
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import headrace
from headrace.frameworks import torch_devices
from tests.accelerator import software

WIDTH = 4096  # numbers in a sample
BATCH = 4
BATCH_BYTES = 8 * WIDTH * BATCH


class Numbered:
    """Sample i is full of the number of its batch."""

    def __init__(self, n: int, slow: int | None = None, delay_s: float = 0.3, width: int = WIDTH) -> None:
        self.n, self.width = n, width
        self.slow, self.delay_s = slow, delay_s

    def __getitem__(self, index: int) -> np.ndarray:
        if index == self.slow:
            time.sleep(self.delay_s)
        return np.full(self.width, float(index // BATCH))

    def __len__(self) -> int:
        return self.n * BATCH


class InPlace:
    """A batch whose `to` changes itself, as those of some libraries do."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: Any, non_blocking: bool = False) -> InPlace:
        self.x = self.x.to(device, non_blocking=non_blocking)
        return self

    def pin_memory(self) -> InPlace:
        self.x = self.x.pin_memory()
        return self


@dataclass
class Boxed:
    """A batch that has no `to`."""

    x: torch.Tensor


class Placed(InPlace):
    """A batch that is moved to wherever the thread's current device is."""

    def to(self, device: Any, non_blocking: bool = False) -> InPlace:
        self.x = self.x.to("soft", non_blocking=non_blocking)
        return self


def make_in_place(samples: Any) -> InPlace:
    return InPlace(torch.from_numpy(np.stack(samples)))


def make_boxed(samples: Any) -> Boxed:
    return Boxed(torch.from_numpy(np.stack(samples)))


def make_placed(samples: Any) -> InPlace:
    return Placed(torch.from_numpy(np.stack(samples)))


def tensor_of(batch: Any) -> torch.Tensor:
    return batch if isinstance(batch, torch.Tensor) else batch.x


def loop(ops: Any, loader: Any, *, lag_us: int = 0, stop: int | None = None) -> list[str]:
    """Look at each batch, and say what was wrong with them."""
    looks, device = [], None
    batches = iter(loader)  # stays until the device is done: a mutant may not wait for that
    for batch in itertools.islice(batches, stop):
        device = tensor_of(batch).device
        with torch.accelerator.device_index(device.index):
            if lag_us:
                ops.lag(lag_us)
            looks.append(ops.look(tensor_of(batch)))
    if device is None:
        return ["there was no batch"]
    torch.accelerator.synchronize(device)
    wrong = []
    for number, seen in enumerate(looks):
        if seen.tolist() != [number * loader.dataset.width * BATCH, number, number]:
            wrong.append(f"batch {number} was seen as {seen.tolist()}")
    return wrong


def open_loader(n: int = 16, **options: Any) -> Any:
    options = {"device": "soft:0", "num_workers": 0, "batch_size": BATCH, **options}
    if options["num_workers"] == 0:
        options.pop("engine", None)
    dataset = options.pop("dataset", None) or Numbered(n)
    return headrace.DataLoader(dataset, **options)


ENGINES = [("processes", 0), ("threads", 2), ("processes", 2)]


def check_correctness(ops: Any) -> dict[str, list[str]]:
    found = {}
    for (engine, workers), pin, collate in itertools.product(ENGINES, (False, True), (None, make_in_place, make_boxed)):
        loader = open_loader(engine=engine, num_workers=workers, pin_memory=pin, collate_fn=collate)
        name = f"{engine} {workers} pin_memory={pin} {collate and collate.__name__}"
        found[name] = loop(ops, loader, lag_us=500)
    for engine, workers in ENGINES:
        name = f"{engine} {workers}"
        with open_loader(engine=engine, num_workers=workers) as loader:
            found[f"{name}, broken off"] = loop(ops, loader, stop=5) + loop(ops, loader, lag_us=1000)
        if workers:
            with open_loader(engine=engine, num_workers=workers, persistent_workers=True) as loader:
                found[f"{name}, persistent"] = [
                    line for stop in (16, 3, 16) for line in loop(ops, loader, lag_us=500, stop=stop)
                ]
        other = torch.Stream("soft:0")
        with other:
            found[f"{name}, another stream"] = loop(ops, open_loader(engine=engine, num_workers=workers), lag_us=1000)
        found[f"{name}, another thread"] = in_thread(
            lambda: loop(ops, open_loader(engine=engine, num_workers=workers), lag_us=1000)  # noqa: B023
        )
        for device in ("soft:0", "soft:1"):
            loader = open_loader(engine=engine, num_workers=workers, device=device)
            found[f"{name}, {device}"] = loop(ops, loader, lag_us=500)
        kept = [tensor_of(batch) for batch in open_loader(engine=engine, num_workers=workers)]
        seen = [tensor.cpu().unique().tolist() for tensor in kept]
        found[f"{name}, kept"] = [] if seen == [[i] for i in range(16)] else [f"saw {seen}"]
    return found


def in_thread(run: Any) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(run()))
    thread.start()
    thread.join()
    return results[0]


def check_device_index(ops: Any) -> dict[str, list[str]]:
    """Where a thread's current device decides: a bare name means the consumer's."""
    found = {}
    for (engine, workers), current, device in itertools.product(ENGINES, (0, 1), ("soft", "soft:0", "soft:1")):
        if workers == 0 and device != "soft":
            continue  # then the loop's own device counts
        torch.accelerator.set_device_index(current)
        expected = current if device == "soft" else int(device[-1])
        loader = open_loader(engine=engine, num_workers=workers, device=device, collate_fn=make_placed)
        places = {tensor_of(batch).device.index for batch in loader}
        name = f"{engine} {workers}, current {current}, {device}"
        found[name] = [] if places == {expected} else [f"came to {places}"]
    torch.accelerator.set_device_index(0)
    return found


def check_memory(ops: Any) -> dict[str, list[str]]:
    """At most `depth` + 2 batches are on the device, whatever straggles or lags."""
    found = {}
    most = 4 * BATCH_BYTES
    threads, straggler = {"engine": "threads", "num_workers": 2}, Numbered(64, slow=40)
    cases: dict[str, dict[str, Any]] = {
        "straggler, threads": {**threads, "num_workers": 8, "prefetch_factor": 4, "dataset": straggler},
        "straggler, processes": {"num_workers": 2, "prefetch_factor": 8, "dataset": straggler},
        "lag, no workers": {"n": 12},
        "lag, threads": {**threads, "n": 12},
        "lag, processes": {"num_workers": 2, "n": 12},
        "out of order": {**threads, "num_workers": 8, "in_order": False},
    }
    for name, options in cases.items():
        torch.accelerator.synchronize()
        ops.reset_peak()
        ops.set_limit(most)
        try:
            loader = open_loader(**options)
            if options.get("in_order", True):
                found[name] = loop(ops, loader, lag_us=60_000 if "lag" in name else 0)
            else:
                found[name] = [] if len([ops.lag(2000) for _ in loader]) == 16 else ["batches are missing"]
            torch.accelerator.synchronize()
            peak = ops.usage(0)[1]
            if peak > most:
                found[name].append(f"there were {peak / BATCH_BYTES} batches on the device")
        except RuntimeError as error:
            found[name] = [f"{type(error).__name__}: {error}"]
        finally:
            ops.set_limit(-1)
    return found


def check_born_pinned(ops: Any) -> dict[str, list[str]]:
    """Batches are copied from where they are born, in pages that are locked, and unlocked in the end."""
    found, pin = {}, torch.Tensor.pin_memory
    runtime = torch.soft.cudart()  # type: ignore[attr-defined]
    register = runtime.cudaHostRegister
    for (engine, workers), refuses in itertools.product(ENGINES, (False, True)):
        calls: dict[str, int] = {"locked": 0, "pinned": 0}

        def counted_pin(tensor: torch.Tensor) -> torch.Tensor:
            calls["pinned"] += 1  # noqa: B023
            return pin(tensor)

        def counted_register(address: int, n_bytes: int, flags: int) -> int:
            calls["locked"] += 1  # noqa: B023
            return 2 if refuses else register(address, n_bytes, flags)  # noqa: B023

        name = f"{engine} {workers}, {'refused' if refuses else 'locked'}"
        torch.Tensor.pin_memory, runtime.cudaHostRegister = counted_pin, counted_register  # type: ignore[assignment]
        try:
            ops.set_late(5000)
            loader = open_loader(engine=engine, num_workers=workers, dataset=Numbered(24, width=2**16))
            found[name] = loop(ops, loader)
            del loader
            gc.collect()
        finally:
            torch.Tensor.pin_memory, runtime.cudaHostRegister = pin, register  # type: ignore[method-assign]
            ops.set_late(1000)
        expected = calls == {"locked": 1, "pinned": 24} if refuses else calls["locked"] <= 12 and not calls["pinned"]
        if not expected:
            found[name].append(f"calls: {calls}")
        deadline = time.monotonic() + 20  # a keeper unlocks them, in a thread of its own
        while ops.n_registered() and time.monotonic() < deadline:
            time.sleep(0.01)
        if ops.n_registered():
            found[name].append(f"{ops.n_registered()} blocks stay locked")
    return found


def check_mutants(ops: Any) -> dict[str, list[str]]:
    """What is wrong with batches if the copier leaves something out: every mutant must show."""
    copier = torch_devices.StreamCopier
    arrive, copy = copier.arrive, copier.copy

    def no_wait(self: Any, on_its_way: Any) -> Any:
        for made in on_its_way.made:
            made.record_stream(self._streams.current())
        return on_its_way.batch

    def no_record(self: Any, on_its_way: Any) -> Any:
        self._streams.current().wait_event(on_its_way.event)
        return on_its_way.batch

    def early_event(self: Any, batch: Any) -> Any:
        event = self._streams.mark()
        on_its_way = copy(self, batch)
        object.__setattr__(on_its_way, "event", event)
        return on_its_way

    def no_side_stream(self: Any, batch: Any) -> Any:
        self._streams.aside = lambda: torch.accelerator.device_index(None)
        return copy(self, batch)

    mutants = {"no wait": (no_wait, copy), "no record": (no_record, copy), "early event": (arrive, early_event)}
    mutants["copies on the thread's default stream"] = (arrive, no_side_stream)
    found = {}
    release, torch_devices._release = torch_devices._release, lambda sent, n_kept: sent.clear()
    try:
        ops.set_late(8000)
        loader = open_loader(engine="threads", num_workers=2, dataset=Numbered(24, width=2**16))
        found["the source is not kept"] = loop(ops, loader)
    finally:
        torch_devices._release = release
    for name, (new_arrive, new_copy) in mutants.items():
        copier.arrive, copier.copy = new_arrive, new_copy  # type: ignore[method-assign]
        try:
            found[name] = behind_and_ahead(ops)
        finally:
            copier.arrive, copier.copy = arrive, copy  # type: ignore[method-assign]
    found["none"] = behind_and_ahead(ops)
    return found


def behind_and_ahead(ops: Any) -> list[str]:
    """Once with a device that is late for the loop, once with copies that are late for the device."""
    wrong = []
    for lag_us, late_us in ((4000, 500), (0, 8000)):
        ops.set_late(late_us)
        with torch.Stream("soft:0"):
            wrong += loop(ops, open_loader(24, engine="threads", num_workers=2), lag_us=lag_us)
    return wrong


def main() -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "This DataLoader will create 8 workers")
    check = globals()[f"check_{sys.argv[1]}"]
    print(json.dumps(check(software.load())), flush=True)


if __name__ == "__main__":
    main()
