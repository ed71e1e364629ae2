"""Streams: sources read in windows, transformed in the workers, in an order that nobody's timing changes."""
