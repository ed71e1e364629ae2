"""What goes into the state of any loader: its header, sealed by a digest; and random generators as plain values."""

from __future__ import annotations

import json
import random
from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from headrace.base.errors import StateError
from headrace.base.generators import States, generator_states, restore_generators
from headrace.base.optional import loaded
from headrace.base.randomness import enter_sample, rng, worker_states
from headrace.base.schema import (
    anything,
    count,
    each,
    exactly,
    items,
    like,
    maybe,
    number,
    packed,
    record,
    refuse,
    shown,
    text,
    whole,
)

VERSION = 1

_seed = maybe(whole(0, 2**64 - 1))
_HEADER = {
    "headrace": exactly(VERSION),
    "epoch": count,
    "batches": count,
    "errors": count,
    "base_seed": _seed,
    "course": anything,  # each kind of loader has a schema of its own
}
_DEEPEST = 64  # levels of containers that a digest covers: no state of headrace's own has more
_HEADER_SINCE = {  # that states of former versions may not have
    "shared_seed": _seed,
    "kind": text,
    "digest": text,
    "skips": items(each(count, count, count)),
}


def parse_header(state: Any, kind: str) -> dict[str, Any]:
    """What every state has, of whatever kind of loader. Other entries, which trainers may have added, are left out.

    Raises:
        StateError: this is not a state, or one of another kind of loader.
    """
    if not isinstance(state, Mapping) or state.get("headrace") != VERSION:
        raise StateError(
            f"This is not a loader state of version {VERSION}: {shown(state)}. Pass what state_dict() gave."
        )
    own = {name: value for name, value in state.items() if name in _HEADER or name in _HEADER_SINCE}
    header: dict[str, Any] = record(_HEADER, _HEADER_SINCE)(own, "")
    if ("kind" in header) != ("digest" in header):
        refuse("", "a mapping with both kind and digest, or of a former version and with neither", state)
    if header.get("kind", kind) != kind:
        raise StateError(
            f"The state does not fit this loader: it was taken with {shown(header['kind'])}, and this is {kind!r}. "
            "Load it into a loader of the same kind."
        )
    return header


def seal(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state with its digest."""
    return {**state, "digest": _digest(state)}


def check_seal(state: Mapping[str, Any]) -> None:
    """See that a state is as it was saved. Those of former versions do not tell.

    Raises:
        StateError: it was altered.
    """
    if "digest" in state and state["digest"] != _digest(state):
        raise StateError(
            "The state is damaged: it was altered after state_dict() gave it, as its digest tells. Pass what "
            "state_dict() gave."
        )


def _digest(state: Mapping[str, Any]) -> str:
    """A hash of the values, however they were stored: JSON turns keys into strings, and tuples into lists.

    What the state says of its data is compared with the data itself, and may be edited: paths, where these have moved.
    """
    from hashlib import blake2b

    values = {name: value for name, value in state.items() if name != "digest"}
    if isinstance(course := values.get("course"), Mapping):
        values["course"] = {name: value for name, value in course.items() if name != "described"}
    canonical = json.dumps(_canonical(values), sort_keys=True, separators=(",", ":"))
    return blake2b(canonical.encode(), digest_size=8).hexdigest()


def _canonical(value: Any, depth: int = 0) -> Any:
    match value:
        case None | bool() | float() | str():
            return value
        case int():
            return hex(value)  # decimals of long numbers take long, and too long ones are an error
        case Mapping() if depth < _DEEPEST:
            return {_key(key): _canonical(item, depth + 1) for key, item in value.items()}
        case list() | tuple() if depth < _DEEPEST:
            return [_canonical(item, depth + 1) for item in value]
        case _:
            return type(value).__name__  # of a user's own state, which is no JSON then


def _key(key: Any) -> str:
    """As JSON writes it."""
    if isinstance(key, str):
        return key
    return json.dumps(key) if key is None or isinstance(key, (int, float)) else type(key).__name__


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


def save_worker_generators() -> dict[str, Any]:
    """The states of all that this process draws from without a seed, for JSON: the global generators and `rng`."""
    _, own = worker_states()
    return {**save_generators(), "rng": None if own is None else _plain(own)}


def load_worker_generators(saved: Mapping[str, Any]) -> None:
    """Set them to what `save_worker_generators` gave."""
    enter_sample(None)
    if saved["rng"] is not None:
        rng().bit_generator.state = saved["rng"]  # to make it may draw from the others
    load_generators(saved)


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


_GLOBAL_FIELDS = {
    "python": each(exactly(3), packed(2500), maybe(number)),
    "numpy": maybe(each(exactly("MT19937"), packed(2496), whole(0, 624), whole(0, 1), number)),
    "torch": maybe(packed()),
}
_GLOBAL = record(_GLOBAL_FIELDS)
_MOST = {"pos": 624, "buffer_pos": 4, "has_uint32": 1, "has_gauss": 1}  # NumPy does not check them


def parse_generators(saved: Any, path: str) -> Any:
    """The schema of what `save_generators` gives."""
    parsed = _GLOBAL(saved, path)
    torch = loaded("torch")
    _try_on(random.Random(), {"python": [3, array("I", b64decode(parsed["python"][1])), parsed["python"][2]]}, path)
    if torch is not None and parsed["torch"] is not None:
        _try_on(torch.Generator(), {"torch": parsed["torch"]}, path)
    return parsed


def parse_worker_generators(saved: Any, path: str) -> Any:
    """The schema of what `save_worker_generators` gives."""
    parsed = record({**_GLOBAL_FIELDS, "rng": anything})(saved, path)
    if parsed["rng"] is not None:
        like(save_generator(np.random.default_rng(0))["numpy"], _MOST)(parsed["rng"], f"{path}.rng")
    parse_generators({name: parsed[name] for name in _GLOBAL_FIELDS}, path)
    return parsed


def parse_own_generators(saved: Any, generators: Sequence[Any], path: str) -> list[Any]:
    """See that states of users' generators fit those that are there now.

    Raises:
        StateError: there are more or fewer, they are of other kinds, or damaged.
    """
    states: list[Any] = items(anything)(saved, path)
    examples = [save_generator(one) for one in generators]
    kinds, own_kinds = [_kind(state) for state in states], [_kind(example) for example in examples]
    if kinds != own_kinds:
        raise StateError(
            f"The state does not fit this loader: it was taken with the generators {shown(kinds)}, and here they are "
            f"{own_kinds}. Load it into a loader with the same kind of generator."
        )
    for i, (state, example, generator) in enumerate(zip(states, examples, generators, strict=True)):
        schema = record({"torch": packed()}) if own_kinds[i] == "'torch'" else like(example, _MOST)
        schema(state, f"{path}[{i}]")
        _try_on(generator, state, f"{path}[{i}]")
    return states


def _try_on(generator: Any, state: Any, path: str) -> None:
    """See that a generator of the same kind takes a state."""
    if state is None:
        return
    try:
        is_torch = hasattr(generator, "manual_seed")
        load_generator(type(generator)(device=generator.device) if is_torch else deepcopy(generator), state)
    except Exception as error:  # noqa: BLE001 (libraries differ in how they refuse)
        refuse(path, f"the state of a generator ({error})", state)


def _kind(state: Any) -> str | None:
    """Which kind of generator a state is of."""
    match state:
        case {"numpy": {"bit_generator": name}}:
            return shown(name)
        case dict() if state:
            return shown(next(iter(state)))
        case _:
            return None


def check_equal(saved: Any, own: Mapping[str, Any]) -> None:
    """Compare what a state says of its loader with what this loader is.

    Raises:
        StateError: something differs; it is named.
    """
    if not isinstance(saved, Mapping):
        refuse("course.described", "a mapping", saved)
    for name, value in own.items():
        if saved.get(name) != value:
            raise StateError(
                f"The state does not fit this loader: it was taken with {name} = {shown(saved.get(name))}, and here it "
                f"is {value!r}. Load it into a loader with the same {name}, or start the epoch anew."
            )
