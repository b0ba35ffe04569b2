"""Products of matrices that need not fit into memory: the request, the session, and its two engines."""
