"""Arithmetic that rounds once and rounds right."""
