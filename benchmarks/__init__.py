"""How fast headrace is, next to torch and to the least work the result needs. One question a module."""
