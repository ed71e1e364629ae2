"""What a loader can tell of its own work: where its time goes, and the proof that every sample came exactly once."""
