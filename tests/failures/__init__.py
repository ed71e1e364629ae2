"""One file for each way to fail: what the training loop sees of it, and that nothing is left behind."""
