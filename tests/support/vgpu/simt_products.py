"""Products of simt_gemm on the virtual GPU, and the same sums in the same order."""

import functools

import numpy as np

from gemmule.core.spec import Choice
from gemmule.kernels.simt.gemm.spec import SPEC

from .kernel_products import problem_of, run_product


def multiply(a, b, out, c=None, alpha=1, beta=0, *, config, **options):
    problem = problem_of(a, b, out, c, alpha, beta)
    return run_product(Choice(SPEC, config), problem, a, b, out, c, **options)


def in_order(a, b):
    """The product by fused multiply-adds, for k = 0, 1, ... one after the other: float64 holds a product exactly."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total = (total.astype(np.float64) + a[:, k, None].astype(np.float64) * b[None, k]).astype(np.float32)
    return total


def in_groups(a, b, config):
    """The product by groups of warps, each of which has its part of the k of every k-tile, added in their order."""
    steps = config.tile_k // config.warps_k
    group = np.arange(a.shape[1]) // steps % config.warps_k
    return functools.reduce(np.add, (in_order(a[:, group == one], b[group == one]) for one in range(config.warps_k)))
