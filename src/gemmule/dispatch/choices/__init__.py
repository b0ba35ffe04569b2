"""Parts of the choice of a kernel: candidates, configs, compiled kernels, and the caches of choices."""
