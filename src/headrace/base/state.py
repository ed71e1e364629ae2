"""What goes into a loader's state: random generators as plain values, and the errors of states that do not fit."""

from __future__ import annotations

import random
from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.base.errors import StateError
from headrace.base.generators import States, generator_states, restore_generators
from headrace.base.optional import loaded

VERSION = 1


def save_generators() -> dict[str, Any]:
    """The states of the global generators, for JSON."""
    python, numpy_state, torch_state = generator_states()
    version, words, gauss = python
    return {
        "python": [version, _text(array("I", words).tobytes()), gauss],
        "numpy": None if numpy_state is None else [numpy_state[0], _text(numpy_state[1]), *numpy_state[2:]],
        "torch": None if torch_state is None else _text(torch_state),
    }


def load_generators(saved: Mapping[str, Any]) -> None:
    """Set the global generators to what `save_generators` gave."""
    version, words, gauss = saved["python"]
    numpy_state, torch_state = saved["numpy"], saved["torch"]
    states: States = (
        (version, tuple(array("I", b64decode(words))), gauss),
        None if numpy_state is None else (numpy_state[0], b64decode(numpy_state[1]), *numpy_state[2:]),
        None if torch_state is None else b64decode(torch_state),
    )
    restore_generators(states)


def save_generator(generator: Any) -> Any:
    """The state of a user's own generator of torch, NumPy or Python, for JSON; None if it is something else."""
    torch_loaded = loaded("torch")
    if torch_loaded is not None and isinstance(generator, torch_loaded.Generator):
        return {"torch": _text(generator.get_state().numpy().tobytes())}
    if isinstance(generator, np.random.Generator):
        return {"numpy": _plain(generator.bit_generator.state)}
    if isinstance(generator, np.random.RandomState):
        return {"legacy numpy": _plain(generator.get_state(legacy=False))}
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return {"python": [version, list(words), gauss]}
    return None


def load_generator(generator: Any, saved: Any) -> None:
    """Set a user's generator to what `save_generator` gave.

    Raises:
        StateError: it is of another kind.
    """
    match saved:
        case None:
            return
        case {"torch": text} if hasattr(generator, "manual_seed"):
            torch: Any = loaded("torch")
            generator.set_state(torch.frombuffer(bytearray(b64decode(text)), dtype=torch.uint8))
        case {"numpy": state} if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        case {"legacy numpy": state} if isinstance(generator, np.random.RandomState):
            words = np.array(state["state"]["key"], np.uint32)
            generator.set_state({**state, "state": {**state["state"], "key": words}})
        case {"python": [version, words, gauss]} if isinstance(generator, random.Random):
            generator.setstate((version, tuple(words), gauss))
        case _:
            raise StateError(f"The state was taken with another kind of generator than {generator!r}.")


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    if isinstance(state, np.ndarray):
        return state.tolist()
    return state.item() if isinstance(state, np.generic) else state


def _text(raw: bytes) -> str:
    return b64encode(raw).decode("ascii")


def check_counts(saved: Mapping[str, Any], *names: str) -> None:
    """See that a state has these entries, and that they are counts.

    Raises:
        StateError: one is not.
    """
    for name in names:
        value = saved.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise StateError(f"The state is damaged: {name} must be an int of at least 0, got {value!r}.")


def check_generators(saved: Any, generators: list[Any]) -> None:
    """See that states of users' generators fit those that are there now.

    Raises:
        StateError: there are more or fewer, or they are of other kinds.
    """
    kinds, own_kinds = [_kind(state) for state in saved], [_kind(save_generator(one)) for one in generators]
    if kinds != own_kinds:
        raise StateError(
            f"The state does not fit this loader: it was taken with the generators {kinds}, and here they are "
            f"{own_kinds}. Load it into a loader with the same kind of generator."
        )


def _kind(state: Any) -> str | None:
    """Which kind of generator a state is of."""
    match state:
        case {"numpy": {"bit_generator": name}}:
            return str(name)
        case dict():
            return str(next(iter(state)))
        case _:
            return None


def check_ahead(saved: Mapping[str, Any]) -> None:
    """See that the batches that were given ahead are told as numbers.

    Raises:
        StateError: they are not.
    """
    ahead = saved.get("ahead", [])
    if not isinstance(ahead, list) or not all(type(number) is int and number > 0 for number in ahead):
        raise StateError(f"The state is damaged: ahead must be a list of positive ints, got {ahead!r:.100}.")


def check_equal(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Compare what a state says of its loader with what this loader is.

    Raises:
        StateError: something differs; it is named.
    """
    for name, value in own.items():
        if saved.get(name) != value:
            raise StateError(
                f"The state does not fit this loader: it was taken with {name} = {saved.get(name)!r}, and here it is "
                f"{value!r}. Load it into a loader with the same {name}, or start the epoch anew."
            )
