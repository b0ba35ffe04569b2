"""Compiled kernels of gemmule for Hopper GPUs: the file ``kernels.pack``, which gemmule finds by itself."""
