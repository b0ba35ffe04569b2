"""Spec of the six products of bfloat16 parts."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT32, Precision
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, Param, TensorParam, Workspace
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, inner_problem
from gemmule.core.row_major import row_result
from gemmule.core.signature import adds_key, every_signature, major_keys, majors_of
from gemmule.core.spec import Signature
from gemmule.kernels.emulation.bf16x6_config import ASIDE, PARTS, SLICE, SixProductsConfig
from gemmule.kernels.emulation.guard_words import guard_params, guarded_key, with_guarded
from gemmule.kernels.emulation.launch_spec import emulation_spec
from gemmule.kernels.hopper.refusals import refuse_hopper
from gemmule.kernels.hopper.tile_config import THREADS
from gemmule.kernels.hopper.tma_tiles import operand_params, row_params, scale_params, why_not_tma
from gemmule.kernels.parts.batched_launch import tile_grid

#: Precisions that allow it.
PRECISIONS = (Precision.BF16X6, Precision.OZAKI)


def _refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where all do.

    Its A (M, K) and B (K, N) hold three parts of K / 3 columns or rows, one after the other.
    """
    if (problem.a.dtype, problem.b.dtype) != (BFLOAT16, BFLOAT16) or problem.precision not in PRECISIONS:
        return f"A is {problem.a.dtype} and B {problem.b.dtype}; this kernel takes the parts that bf16x6_gemm makes"
    if problem.k % (PARTS * SLICE):
        return f"K={problem.k} is not {PARTS} parts of whole k-tiles of {SLICE}"
    for name, matrix in problem.operands().items():
        if name in "cd" and matrix.dtype != FLOAT32:
            return f"{name.upper()} is {matrix.dtype}; this kernel writes float32 and adds it"
    inner = inner_problem(problem, SPEC.batch_dims)
    for name, matrix in (("a", inner.a), ("b", inner.b)):
        if reason := why_not_tma(name, matrix, batch_of(matrix, inner.batch)):
            return reason
    return refuse_hopper(problem, arch)


def batch_of(matrix: StridedMatrix, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Return the batch of an operand: 1 where one matrix is for all of the batch; it is split once."""
    return batch if any(matrix.batch_strides) else (1,) * len(batch)


def _signature(problem: GemmProblem, config: SixProductsConfig) -> Signature:
    """Specialise for the direction in which A and B are contiguous, and whether there is a C."""
    del config
    oriented, _, _ = row_result(problem)
    return (*major_keys(*majors_of(oriented)), *adds_key(problem.c is not None), *guarded_key(problem.precision))


def _launch(problem: GemmProblem, config: SixProductsConfig) -> Launch:
    """Return the launch recipe: as many CTAs as share the tiles, tensor maps of the parts, and C and D in place."""
    problem, first, second = row_result(problem)
    batch = problem.batch or (1,)
    # The one place where B turns from (K, N), as the API has it, to (N, K), as CuTe has it.
    a, b = problem.a, problem.b.transposed()
    params: tuple[Param, ...] = (
        *operand_params(first, a, batch_of(a, batch), config.tile_m),
        *operand_params(second, b, batch_of(b, batch), config.tile_n),
        *row_params(problem, batch),
        *scale_params(problem),
    )
    ctas = min(tile_grid(problem, config.tile_m, config.tile_n)[0], config.ctas)
    workspaces: tuple[Workspace, ...] = ()
    if problem.k > PARTS * SLICE * ASIDE:
        workspaces = (Workspace("long sums", ctas * config.tile_elements * FLOAT32.itemsize),)
    # For a short K nothing is stored there, and any address will do.
    aside = ("long sums", ctas * config.tile_elements) if workspaces else ("d", 0)
    return Launch(
        grid=(ctas, 1, 1),
        block=(THREADS, 1, 1),
        shared_bytes=config.shared_bytes,
        params=(*params, TensorParam(aside[0], (aside[1],), ()), *guard_params(problem.precision)),
        overlaps=True,
        workspaces=workspaces,
    )


#: Microseconds on an H200: a launch; writing 128 x 128; and six products of a k-tile by columns of the tile.
_LAUNCH, _WRITE = 1.9, 1.0
_K_TILE = {192: 2.94, 128: 1.98, 64: 1.04}


def _costs(problem: GemmProblem, configs: Sequence[SixProductsConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: tiles that an SM computes one after another."""
    problem, _, _ = row_result(problem)
    k_tiles = problem.k // (PARTS * SLICE)
    found = []
    for config in configs:
        tiles, _, _ = tile_grid(problem, config.tile_m, config.tile_n)
        waves = -(-tiles // min(gpu.multiprocessors, config.ctas))
        written = _WRITE * config.tile_n / 128 * (1 if problem.c is None else 2)
        each = gpu.multiply * k_tiles * _K_TILE[config.tile_n] + gpu.load * written
        found.append(gpu.launch * _LAUNCH + waves * each)
    return found


SPEC = emulation_spec(
    name="bf16x6_products",
    summary="three parts of float32 in bfloat16 each, six of their products: wgmma, TMA, "
    "accumulators rounded every 32 of K",
    package=__package__,
    configs=(
        SixProductsConfig(),
        SixProductsConfig(tile_n=128, stages=6),
        SixProductsConfig(tile_n=64, stages=9),
    ),
    signatures=with_guarded(every_signature(a_major="km", b_major="nk", adds=("no", "yes"))),
    signature=_signature,
    launch=_launch,
    refuses=_refuses,
    costs=_costs,
)
