"""How many examples a property test tries, and whether they are new ones.

By default the examples are the same in every run. `HEADRACE_PARITY_EXPLORE=10` tries ten times as many, at random.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

_FACTOR = int(os.environ.get("HEADRACE_PARITY_EXPLORE", "0"))


def explore(examples: int) -> settings:
    """Settings for a property test that tries this many examples."""
    return settings(
        max_examples=examples * max(1, _FACTOR),
        derandomize=_FACTOR == 0,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
