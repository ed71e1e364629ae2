"""Several sequences side by side: position i of every batch goes on where position i of the batch before it stopped."""
