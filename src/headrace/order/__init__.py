"""Which samples, in which order: samplers, batches of indices, and the plan of an epoch."""
