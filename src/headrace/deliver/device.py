"""How a batch gets to where the training loop uses it: pinned, moved to a device, both, or as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.base.messages import Failed, Finished, Outcome
from headrace.base.optional import is_installed, missing_extra

Step = Callable[[Any], Any]
DEPTH = 2
"""How many batches may be on their way to a device, or wait there."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Two steps from a batch to what the training loop gets. Where one is None, there is nothing to do.

    Attributes:
        prepare: the first step, which may run ahead in another thread.
        begin: what that thread calls first.
        finish: the second step, in the thread of the training loop.
    """

    prepare: Step | None = None
    begin: Callable[[], None] | None = None
    finish: Step | None = None

    @property
    def at_once(self) -> Step | None:
        """Both steps in one, for the thread of the training loop."""
        return _chain(self.prepare, self.finish)

    def prepare_outcome(self, outcome: Outcome) -> Outcome:
        """The first step for what an engine gives: a batch that cannot be prepared has failed like any other."""
        if self.prepare is None or not isinstance(outcome, Finished):
            return outcome
        try:
            return outcome._replace(batch=self.prepare(outcome.batch))
        except Exception as error:  # noqa: BLE001 - raised in the place of the batch
            return Failed(outcome.number, error, outcome.state, outcome.bad)


def plan_delivery(pin: Step | None, device: Any) -> Delivery:
    """What has to be done to each batch; called for each epoch, by the thread of the training loop.

    Args:
        pin: what `pin_function` returned, if memory is to be pinned.
        device: what torch takes for a device; None leaves batches where they are.

    Raises:
        MissingExtraError: there is a device, but no torch.
        RuntimeError, AssertionError, TypeError: torch does not know the device, or cannot use it here.
    """
    if pin is None and device is None:
        return Delivery()
    check_device(device)
    from headrace.frameworks.torch_devices import device_copier, thread_settings

    if device is None:
        return Delivery(prepare=pin, begin=thread_settings())
    copier = device_copier(device, DEPTH)
    if pin is None and not copier.worth_a_thread:
        return Delivery(finish=copier.copy)
    return Delivery(prepare=_chain(pin, copier.copy), begin=thread_settings(device), finish=copier.arrive)


def check_device(device: Any) -> None:
    """Raise early what a loader can know early: without initialising the device, so that workers may be forked.

    Raises:
        MissingExtraError: there is a device, but no torch.
        RuntimeError, TypeError: torch does not know the device.
    """
    if device is None:
        return
    if not is_installed("torch"):
        raise missing_extra("torch", "Moving batches to a device")
    from headrace.frameworks.torch_devices import parse_device

    parse_device(device)


def _chain(first: Step | None, second: Step | None) -> Step | None:
    if first is None or second is None:
        return first or second
    return lambda batch: second(first(batch))
