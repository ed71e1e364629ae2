"""Datasets: the abstract ones that users write, and those that combine or wrap others."""
