"""Hashes of batches, and states, that earlier versions of headrace gave; rewritten by `python -m tests.recorded`."""
