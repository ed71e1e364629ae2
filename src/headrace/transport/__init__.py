"""How batches get from a worker process to the loader: shared memory for what is large, a socket for the rest."""
