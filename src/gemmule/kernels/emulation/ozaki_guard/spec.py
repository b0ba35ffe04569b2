"""Spec of the guard's product of magnitudes."""

from __future__ import annotations

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT8_E5M2
from gemmule.core.launch import Launch, TensorParam
from gemmule.core.problem import GemmProblem
from gemmule.core.signature import every_signature
from gemmule.core.spec import Signature
from gemmule.kernels.emulation.guard import SAMPLE_RUN, sample_runs
from gemmule.kernels.emulation.guard_words import SHORTFALL
from gemmule.kernels.emulation.launch_spec import emulation_spec
from gemmule.kernels.emulation.ozaki_config import PARTS, SLICE, ProductsConfig
from gemmule.kernels.emulation.ozaki_products.spec import product_costs, product_grid
from gemmule.kernels.emulation.product_forms import planes_of
from gemmule.kernels.hopper import tile_config
from gemmule.kernels.hopper.refusals import refuse_hopper
from gemmule.kernels.hopper.tma_tiles import operand_params


def sampled_length(k: int) -> int:
    """Return the bytes of a line of magnitudes, whole k-tiles."""
    return -(-sample_runs(k) * SAMPLE_RUN // SLICE) * SLICE


def bound_columns(problem: GemmProblem) -> int:
    """Return the columns of sums of magnitudes: of a complex result those of real and of imaginary parts."""
    return problem.n * (PARTS if planes_of(problem) > 1 else 1)


def _refuses(problem: GemmProblem, arch: Arch) -> str | None:
    if problem.a.dtype != FLOAT8_E5M2 or problem.b.dtype != FLOAT8_E5M2 or problem.k % SLICE:
        return f"A is {problem.a.dtype} and B {problem.b.dtype}; this kernel takes what ozaki_scales makes"
    return refuse_hopper(problem, arch, "ab", tma="ab")


def _signature(problem: GemmProblem, config: ProductsConfig) -> Signature:
    del problem, config
    return (("element", FLOAT8_E5M2.name),)


def _launch(problem: GemmProblem, config: ProductsConfig) -> Launch:
    """Return the launch recipe: maps of the magnitudes, the guard's words with the extents of D, and scales."""
    return Launch(
        grid=product_grid(problem, config),
        block=(tile_config.THREADS, 1, 1),
        cluster=(config.cluster_size, 1, 1),
        shared_bytes=config.shared_bytes,
        params=(
            *operand_params("a", problem.a, (1,), config.tile_m, config.cluster_n),
            *operand_params("b", problem.b.transposed(), (1,), config.tile_n, config.cluster_m),
            TensorParam(SHORTFALL, (problem.m, problem.n, 1), (0, 0)),
            TensorParam("rows", (problem.m,), ()),
            TensorParam("columns", (problem.n,), ()),
        ),
        overlaps=True,
    )


SPEC = emulation_spec(
    name="ozaki_guard",
    summary="the least product of magnitudes in float8_e5m2: wgmma, TMA, one number written",
    package=__package__,
    configs=(ProductsConfig(), ProductsConfig(tile_m=128, tile_n=128, stages=6, pingpong=1)),
    signatures=every_signature(element=[FLOAT8_E5M2]),
    signature=_signature,
    launch=_launch,
    refuses=_refuses,
    costs=product_costs,
)
