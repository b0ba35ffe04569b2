"""Epilogues of a call."""
