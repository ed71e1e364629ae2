"""Differential tests: torch is the oracle, headrace must give the same bits, errors and random states."""
