"""``@cute.jit`` functions and their host part, for the virtual GPU: no kernel's key depends on these modules."""
