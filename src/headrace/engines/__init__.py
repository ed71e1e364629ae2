"""What runs the tasks of an epoch: here, elsewhere, in any order."""
