"""Small Triton kernels of the tests' own."""

import triton
import triton.language as tl


@triton.jit
def scaled_sum(x, y, out, count, alpha, shift: tl.constexpr, block: tl.constexpr):
    """``out = alpha * x + y``; `shift` moves the stores."""
    places = tl.program_id(0) * block + tl.arange(0, block)
    inside = places < count
    total = alpha * tl.load(x + places, mask=inside) + tl.load(y + places, mask=inside)
    tl.store(out + places + shift, total, mask=inside)


@triton.heuristics({"block": lambda known: 64 if known["n"] > 32 else 32})
@triton.autotune([triton.Config({"depth": 32}, num_warps=4, num_stages=2)], key=["k"])
@triton.jit
def product(a, b, d, m, n, k, lda, ldb, ldd, depth: tl.constexpr, block: tl.constexpr):
    """``d = a @ b`` of float16 by tiles of block x block."""
    rows = tl.program_id(0) * block + tl.arange(0, block)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    total = tl.zeros((block, block), tl.float32)
    for start in range(0, k, depth):
        inner = start + tl.arange(0, depth)
        left = tl.load(
            a + rows[:, None] * lda + inner[None, :], mask=(rows[:, None] < m) & (inner[None, :] < k), other=0
        )
        right = tl.load(
            b + inner[:, None] * ldb + columns[None, :], mask=(inner[:, None] < k) & (columns[None, :] < n), other=0
        )
        total = tl.dot(left, right, total)
    tl.store(d + rows[:, None] * ldd + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))
