"""Several rows of a step at a time, inside a worker: in threads, or as coroutines. For functions that mostly wait."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from headrace.base.randomness import RowGenerators, TurnsToDraw
from headrace.base.world import adopt_worker, own_worker


class Made(NamedTuple):
    """What a function made of a row, or what it raised."""

    value: Any = None
    error: Exception | None = None


def is_async(fn: Any) -> bool:
    """Whether calling it makes a coroutine: a function defined by `async def`, or an object with such a `__call__`."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


class RowThreads:
    """Threads that call a function, each for one row at a time.

    Guarantees: what rows become is in their order; random numbers from `rng()` are those of one thread that calls the
    function for one row after the other: from its first draw on, a row waits until all rows before it are done.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "headrace rows", partial(adopt_worker, own_worker()))
        self._busy: list[bool] = []
        self.close = weakref.finalize(self, _end_threads, self._pool, self._busy)
        """End the threads, now and not when nobody has this any more."""

    def apply(self, fn: Callable[[Any], Any], rows: Sequence[Any]) -> list[Made]:
        """What the function makes of the rows."""
        turns = TurnsToDraw()
        self._busy.append(True)
        futures = [self._pool.submit(turns.call, number, _caught, fn, row) for number, row in enumerate(rows)]
        try:
            made = [future.result() for future in futures]
            self._busy.clear()
            return made
        finally:
            for future in futures:
                future.cancel()
            turns.give_back()


def _end_threads(pool: ThreadPoolExecutor, busy: list[bool]) -> None:
    """Where an interrupt has left functions at work, nobody waits for them."""
    pool.shutdown(wait=not busy)


def _caught(fn: Callable[[Any], Any], row: Any) -> Made:
    try:
        return Made(fn(row))
    except Exception as error:  # noqa: BLE001 (whatever the user's function raises)
        return Made(error=error)


class EventLoops:
    """An event loop for each thread that runs coroutines of a step: what these keep, such as connections, stays usable.

    It is none of the thread's own: where one runs already, as in a notebook, a helper thread runs this one meanwhile.
    """

    def __init__(self) -> None:
        self._loops: dict[tuple[int, int], asyncio.AbstractEventLoop] = {}
        weakref.finalize(self, _close_loops, self._loops)

    def __reduce__(self) -> Any:
        return EventLoops, ()

    def apply(self, fn: Callable[[Any], Any], rows: Sequence[Any], first: int, at_once: int) -> list[Made]:
        """What a coroutine function makes of the rows, so many of them at a time.

        Args:
            first: the number of the first row, by which its random numbers are keyed.
        """
        generators = RowGenerators(first)
        try:
            return self._run(partial(_apply_async, fn, rows, at_once, generators))
        finally:
            generators.give_back()

    def _run(self, make: Callable[[], Coroutine[Any, Any, list[Made]]]) -> list[Made]:
        here = os.getpid(), threading.get_ident()
        loop = self._loops.get(here)
        if loop is None:
            loop = self._loops[here] = asyncio.new_event_loop()
        if asyncio._get_running_loop() is None:
            return _run_in(loop, make)
        with ThreadPoolExecutor(1, initializer=partial(adopt_worker, own_worker())) as helper:
            return helper.submit(_run_in, loop, make).result()


def _run_in(loop: asyncio.AbstractEventLoop, make: Callable[[], Coroutine[Any, Any, list[Made]]]) -> list[Made]:
    try:
        return loop.run_until_complete(make())
    except BaseException:  # an interrupt: nothing may go on when the loop runs again
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        raise


async def _apply_async(
    fn: Callable[[Any], Any], rows: Sequence[Any], at_once: int, generators: RowGenerators
) -> list[Made]:
    room = asyncio.Semaphore(at_once)

    async def make(number: int, row: Any) -> Made:
        async with room:
            generators.enter(number)
            try:
                return Made(await fn(row))
            except Exception as error:  # noqa: BLE001 (whatever the user's function raises)
                return Made(error=error)

    with generators:
        return list(await asyncio.gather(*(make(number, row) for number, row in enumerate(rows))))


def _close_loops(loops: dict[tuple[int, int], asyncio.AbstractEventLoop]) -> None:
    for (pid, _), loop in loops.items():
        if pid == os.getpid() and not loop.is_running():  # those of a forked process's parent are not its own
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
