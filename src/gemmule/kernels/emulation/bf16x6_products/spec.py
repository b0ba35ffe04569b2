"""The product after bf16x6_gemm: six products of parts in bfloat16, what it takes, how it is launched."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT32, Precision
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, Param, TensorParam, Workspace
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.row_major import row_result
from gemmule.core.signature import adds_key, major_keys, majors_of
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper
from gemmule.kernels.hopper.tile_config import THREADS
from gemmule.kernels.hopper.tma_tiles import operand_params, row_params, scale_params, why_not_tma

from .config import ASIDE, PARTS, SLICE, SixProductsConfig


def why_not(problem: GemmProblem, arch: Arch, config: SixProductsConfig) -> None:
    """Return that every config takes what `refuses` does not refuse."""
    del problem, arch, config


def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where all do.

    Its A (M, K) and B (K, N) hold three parts of K / 3 columns or rows, one after the other.
    """
    if (problem.a.dtype, problem.b.dtype) != (BFLOAT16, BFLOAT16) or problem.precision is not Precision.BF16X6:
        return f"A is {problem.a.dtype} and B {problem.b.dtype}; this kernel takes the parts that bf16x6_gemm makes"
    if problem.k % (PARTS * SLICE):
        return f"K={problem.k} is not {PARTS} parts of whole k-tiles of {SLICE}"
    for name, matrix in problem.operands().items():
        if name in "cd" and matrix.dtype != FLOAT32:
            return f"{name.upper()} is {matrix.dtype}; this kernel writes float32 and adds it"
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    for name, matrix in (("a", inner.a), ("b", inner.b)):
        if reason := why_not_tma(name, matrix, _batch_of(matrix, inner.batch)):
            return reason
    return refuse_hopper(problem, arch)


def _batch_of(matrix: StridedMatrix, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Return the batch of an operand: 1 where one matrix is for all of the batch, which the kernel then takes."""
    return batch if any(matrix.batch_strides) else (1,) * len(batch)


def signature(problem: GemmProblem, config: SixProductsConfig) -> Signature:
    """Specialise for the direction in which A and B are contiguous, and whether there is a C."""
    del config
    oriented, _, _ = row_result(problem)
    return _signature(majors_of(oriented), problem.c is not None)


def _signature(majors: tuple[str, str], adds: bool) -> Signature:
    return (*major_keys(*majors), *adds_key(adds))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination."""
    del arch
    return tuple(_signature((a, b), adds) for a in "km" for b in "nk" for adds in (False, True))


def launch(problem: GemmProblem, config: SixProductsConfig) -> Launch:
    """Return the launch recipe: as many CTAs as share the tiles, maps of the parts, and C and D as they lie."""
    problem, first, second = row_result(problem)
    batch = problem.batch or (1,)
    tiles = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n) * batch[0]
    # The one place where B turns from (K, N), as the API has it, to (N, K), as CuTe has it.
    a, b = problem.a, problem.b.transposed()
    params: tuple[Param, ...] = (
        *operand_params(first, a, _batch_of(a, batch), config.tile_m),
        *operand_params(second, b, _batch_of(b, batch), config.tile_n),
        *row_params(problem, batch),
        *scale_params(problem),
    )
    ctas = min(tiles, config.ctas)
    workspaces: tuple[Workspace, ...] = ()
    if problem.k > PARTS * SLICE * ASIDE:
        workspaces = (Workspace("long sums", ctas * config.outputs * FLOAT32.itemsize),)
    # For a short K nothing is stored there, and any address will do.
    aside = ("long sums", ctas * config.outputs) if workspaces else ("d", 0)
    return Launch(
        grid=(ctas, 1, 1),
        block=(THREADS, 1, 1),
        shared_bytes=config.shared_bytes,
        params=(*params, TensorParam(aside[0], (aside[1],), ())),
        overlaps=True,
        workspaces=workspaces,
    )


#: Microseconds on an H200: a launch; writing 128 x 128; and six products of a k-tile by columns of the tile.
_LAUNCH, _WRITE = 1.9, 1.0
_K_TILE = {192: 2.94, 128: 1.98, 64: 1.04}


def costs(problem: GemmProblem, configs: Sequence[SixProductsConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: tiles that an SM computes one after another."""
    m, n = (problem.m, problem.n) if problem.d.is_row_major else (problem.n, problem.m)
    k_tiles, batch = problem.k // (PARTS * SLICE), (problem.batch or (1,))[0]
    found = []
    for config in configs:
        tiles = -(-m // config.tile_m) * -(-n // config.tile_n) * batch
        waves = -(-tiles // min(gpu.multiprocessors, config.ctas))
        written = _WRITE * config.tile_n / 128 * (1 if problem.c is None else 2)
        each = gpu.multiply * k_tiles * _K_TILE[config.tile_n] + gpu.load * written
        found.append(gpu.launch * _LAUNCH + waves * each)
    return found


SPEC = KernelSpec(
    name="bf16x6_products",
    operation="gemm",
    summary="three parts of float32 in bfloat16 each, six of their products: wgmma, TMA, "
    "accumulators rounded every 32 of K",
    package=__package__,
    archs=(HOPPER,),
    configs=(
        SixProductsConfig(),
        SixProductsConfig(tile_n=128, stages=6),
        SixProductsConfig(tile_n=64, stages=9),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
)
