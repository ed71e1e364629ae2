"""Spares every test the walk through the objects that torch and JAX made when they were imported."""

from __future__ import annotations

import gc

gc.freeze()
