"""What every stage may use: errors, messages, containers, optional imports, who is running where."""
