"""How many examples a property test tries, and whether they are new ones.

By default the examples are the same in every run; `make hunt`, which sets HEADRACE_EXAMPLES, draws them at random.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings


def explore(examples: int) -> settings:
    """Settings for a property test that tries this many examples."""
    return settings(
        max_examples=examples,
        derandomize=settings.default.derandomize,  # of the profile that tests/conftest.py has loaded
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
