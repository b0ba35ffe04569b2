"""The public functions: check, choose, run."""
