"""Adapters for trainers whose contract asks for more than torch's DataLoader has; each imports its trainer."""
