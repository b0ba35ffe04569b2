"""Random products of `hopper_gemm` on the virtual GPU, in a config."""

from __future__ import annotations

from gemmule.core.dtype import BFLOAT16
from gemmule.kernels.hopper.gemm.spec import SPEC

from ..oracle import assert_product, poisoned, random_matrix
from .kernel_products import multiply


def check_product(config, shape, rng, dtype=BFLOAT16, out=BFLOAT16, batch=(), adds=False, **options):
    """Multiply random matrices, and hold the result to its bound."""
    m, n, k = shape
    a, b = random_matrix(rng, dtype, (*batch, m, k)), random_matrix(rng, dtype, (*batch, k, n))
    c = random_matrix(rng, out, (*batch, m, n)) if adds else None
    factors = (0.75, -1.5) if adds else (1, 0)
    d = multiply(SPEC, a, b, poisoned(out, (*batch, m, n)), c, *factors, config=config, **options)
    assert_product(d, a, b, *((c, *factors) if adds else ()))
