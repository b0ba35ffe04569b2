"""Validation of the arguments of a call."""
