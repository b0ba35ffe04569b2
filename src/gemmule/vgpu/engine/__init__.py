"""The interpreter: all threads of several CTAs at once, as lanes of NumPy arrays."""
