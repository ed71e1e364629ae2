"""Distributed checkpoints: a loader's state as one entry, which every rank can read back, however many there are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_NAME = "headrace"


class OneEntryState:
    """The state of a loader for `torch.distributed.checkpoint`, whose entries must be the same on saving and loading.

    A loader's own state is a tree that differs from place to place, and DCP would look in the checkpoint for each of
    its leaves. Here it is one string of JSON. All ranks save the same, so a checkpoint loads on any number of ranks.

    For Orbax, and for whatever else saves JSON, take `loader.state_dict()` itself.

    Args:
        loader: any loader of headrace, or an adapter around one.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, Any]:
        """The state of the loader, as one entry."""
        return {_NAME: json.dumps(self._loader.state_dict())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the loader resume there; nothing happens if the checkpoint was taken without it.

        Raises:
            StateError: the state does not fit the loader.
        """
        if _NAME in state_dict:
            self._loader.load_state_dict(json.loads(state_dict[_NAME]))
