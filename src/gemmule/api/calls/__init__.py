"""Calls: the dispatcher and the call cache."""
