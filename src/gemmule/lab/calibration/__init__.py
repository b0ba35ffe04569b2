"""Calibration: products that measure a GPU's rates, and the fit of these to their times."""
