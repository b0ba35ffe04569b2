"""Products of simt_gemm on the virtual GPU, and the same sums in the same order."""

import functools

import numpy as np

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import FLOAT32
from gemmule.core.spec import Choice
from gemmule.kernels.simt.gemm.spec import SPEC
from gemmule.vgpu import Counter, Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.launcher import launch
from support.oracle import poisoned, random_matrix

from .kernel_products import laid_out, problem_of, run_product


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


def counts_of(config, a, b, d):
    """Run a product on the virtual GPU, all checks on, and return its counts."""
    problem, counter = problem_of(a, b, d), Counter()
    artifact = artifact_for(SPEC, config, SPEC.signature(problem, config), virtual_arch())
    arrays = {"a": a, "b": b, "d": d}
    launch(artifact, SPEC.launch(problem, config), arrays, options=Options(checks=True), observers=(counter,))
    return counter.counts


def counted_product(config, shape, kinds, rng):
    """Run a random product, compare the result with the same sums in the same order, and return its counts."""
    m, n, k = shape
    a, b = random_matrix(rng, FLOAT32, (m, k)), random_matrix(rng, FLOAT32, (k, n))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), kinds, strict=True)]
    d = poisoned(FLOAT32, (m, n))
    counts = counts_of(config, *moved, d)
    np.testing.assert_array_equal(d, in_groups(a, b, config) if k else np.zeros_like(d))
    return counts
