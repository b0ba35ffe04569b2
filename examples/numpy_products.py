"""Products of NumPy arrays: matmul, BLAS's gemm, a fused epilogue, and what a call would run."""

import numpy as np

import gemmule as gm

rng = np.random.default_rng(0)
x = rng.standard_normal((512, 256), dtype=np.float32)
w = rng.standard_normal((256, 128), dtype=np.float32)
bias = rng.standard_normal(128, dtype=np.float32)

y = gm.matmul(x, w)  # as numpy.matmul; batches and broadcasting too
z = gm.gemm(x, w, y, alpha=2.0, beta=-1.0)  # 2 x w - y, rounded once
hidden = gm.gemm(x, w, bias=bias, epilogue="gelu")  # one pass over the result
gram = gm.matmul(x.T, x)  # a product with its own transpose: half of the work
turned = gm.matrix_transpose(y)  # a new, contiguous array

np.testing.assert_allclose(z, y, rtol=1e-5, atol=1e-5)
np.testing.assert_array_equal(turned, y.T)
print(gm.matmul.plan(x, w))
print(f"y {y.shape}, hidden {hidden.shape}, gram {gram.shape}, turned {turned.shape}")
