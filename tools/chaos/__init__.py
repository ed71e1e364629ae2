"""Chaos: random loaders are disturbed, stopped, resumed and misled, and every batch is compared. See `__main__`."""
