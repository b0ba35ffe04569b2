"""Products and transposes of NumPy arrays on the host's BLAS."""
