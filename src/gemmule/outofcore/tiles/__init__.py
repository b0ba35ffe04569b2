"""Products on the host, tile by tile: the plan within a memory budget, and the engine."""
