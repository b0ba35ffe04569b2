"""Stores of matrices: the protocols of sources and sinks, arrays, and the opening of what users name."""
