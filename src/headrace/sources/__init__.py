"""Where streams come from: files, object stores and databases, cut into blocks."""
