"""Freivalds' check of a product, with a bound for its rounding."""
