"""Products of matrices that do not fit into memory: planned, streamed by tiles, verified."""
