"""An epilogue of your own: scale rows, apply SiLU, add a residual, in the pass that writes the product."""

import numpy as np

import gemmule as gm


def block(acc, c, bias, scale):
    """Be compiled into the kernel: `acc` is an element of the product, `c` and `bias` are arguments of gemm."""
    return gm.epilogue.silu(scale * acc + bias) + c


rng = np.random.default_rng(0)
x = rng.standard_normal((300, 64), dtype=np.float32)
w = rng.standard_normal((64, 200), dtype=np.float32)
residual = rng.standard_normal((300, 200), dtype=np.float32)
bias = rng.standard_normal(200, dtype=np.float32)
scale = rng.uniform(0.5, 2.0, (300, 1)).astype(np.float32)

fused = gm.gemm(x, w, residual, bias=bias, epilogue=block, epilogue_args={"scale": scale})

before = scale * (x @ w) + bias
np.testing.assert_allclose(fused, before / (1 + np.exp(-before)) + residual, rtol=1e-4, atol=1e-4)
print(f"{fused.shape[0]} x {fused.shape[1]}, largest element {fused.max():.3f}")
