"""Searching the fastest kernel and config of products: shapes, candidates, timing, results."""
