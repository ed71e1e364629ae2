"""The array libraries that batches come out in: NumPy always, torch and JAX where they are installed."""

from headrace.frameworks.framework import Framework, RandomSource, framework_of, random_source, resolve_output

__all__ = ["Framework", "RandomSource", "framework_of", "random_source", "resolve_output"]
