"""Builds the wheel of compiled kernels, gemmule-kernels-sm90: ``make kernels-wheel``."""
