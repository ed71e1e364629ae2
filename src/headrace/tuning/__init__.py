"""How many workers, of which kind: measured on the dataset at hand, within what the machine has."""
