"""Searching the fastest kernel and config of products: which, what is tried, how it is timed, what is kept."""
