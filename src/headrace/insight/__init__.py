"""What a loader can tell of its own work: here, the proof that every sample came exactly once."""
