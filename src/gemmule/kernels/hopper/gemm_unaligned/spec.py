"""hopper_gemm_unaligned, for C and D of any alignment: its limits, launch recipe and cost."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType, Precision
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs, cache_last_call
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem, OperandTypes
from gemmule.core.row_major import row_result
from gemmule.core.signature import adds_key, major_keys, majors_of
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, refuse_types
from gemmule.kernels.hopper.tile_config import K_BYTES, MAX_SHARED_BYTES, THREADS
from gemmule.kernels.hopper.tma_tiles import operand_params, row_params, scale_params
from gemmule.kernels.mma_sync.cost import is_faster
from gemmule.kernels.mma_sync.small.spec import SPEC as MMA_SYNC_SMALL
from gemmule.kernels.mma_sync.small.spec import is_faster as is_faster_small
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC

from .config import UnalignedGemmConfig

DTYPES = (BFLOAT16, FLOAT16, FLOAT32)


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    if problem.a.dtype == FLOAT32 and not (problem.a.has_contiguous_rows and problem.b.has_contiguous_cols):
        return "A or B is float32 and not contiguous along K; wgmma takes only 16-bit operands MN-major"
    return refuse_hopper(problem, arch, tma="ab")


def why_not(problem: GemmProblem, arch: Arch, config: UnalignedGemmConfig) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    del arch
    needed = config.shared_bytes_of(problem.d.dtype.itemsize)
    if needed > MAX_SHARED_BYTES:
        return f"config {config}: {needed} bytes of shared memory for {problem.d.dtype}, of at most {MAX_SHARED_BYTES}"
    return None


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    if types.a == FLOAT32 and types.precision is not Precision.TF32:
        return "A and B are float32; this kernel rounds them to TF32, for precision='tf32'"
    return refuse_types(DTYPES, types, arch)


def signature(problem: GemmProblem, config: UnalignedGemmConfig) -> Signature:
    """Specialise for the type, the direction in which A and B are contiguous, and whether there is a C."""
    del config
    oriented, _, _ = row_result(problem)
    return _signature(problem.a.dtype, majors_of(oriented), problem.c is not None)


def _signature(element: DType, majors: tuple[str, str], adds: bool) -> Signature:
    return (("element", element.name), *major_keys(*majors), *adds_key(adds))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination."""
    del arch
    found = [
        _signature(dtype, (a, b), adds)
        for dtype in (BFLOAT16, FLOAT16)
        for a in "km"
        for b in "nk"
        for adds in (False, True)
    ]
    return (*found, *(_signature(FLOAT32, ("k", "k"), adds) for adds in (False, True)))


def launch(problem: GemmProblem, config: UnalignedGemmConfig) -> Launch:
    """Return the launch recipe: as many CTAs as share the tiles, maps of A and B, and C and D as they lie."""
    problem, first, second = row_result(problem)
    batch = problem.batch or (1,)
    tiles = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n) * batch[0]
    # The one place where B turns from (K, N), as the API has it, to (N, K), as CuTe has it.
    params = (
        *operand_params(first, problem.a, batch, config.tile_m),
        *operand_params(second, problem.b.transposed(), batch, config.tile_n),
        *row_params(problem, batch),
        *scale_params(problem),
    )
    return Launch(
        grid=(min(tiles, config.ctas), 1, 1),
        block=(THREADS, 1, 1),
        shared_bytes=config.shared_bytes_of(problem.d.dtype.itemsize),
        params=params,
        overlaps=True,
    )


#: Rate of a tile of that many rows and columns in a long product, as a share of that of 128 x 128 on an H200.
_RATES = {(256, 192): 1.1, (128, 256): 1.04, (128, 192): 1.05, (128, 128): 1.0, (64, 128): 0.88, (64, 64): 0.6}
#: Microseconds on an H200: a launch, a k-tile of 128 x 128, and the next tile; how much longer k-tiles take for each
#: MN-major operand.
_LAUNCH, _K_TILE, _NEXT, _MN_MAJOR = 2.4, 0.327, 0.308, 0.146
#: Writing 128 x 128 by one warpgroup, element by element; what the part beyond the result's edges saves of that.
_WRITE, _BEYOND = 2.98, 0.58


def costs(problem: GemmProblem, configs: Sequence[UnalignedGemmConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: tiles that an SM computes one after another, and their cost.

    With ping-pong one warpgroup writes while the other multiplies, but for the last tile; else both write a half.
    """
    m, n = (problem.m, problem.n) if problem.d.is_row_major else (problem.n, problem.m)
    k_tiles, batch = -(-problem.k * problem.a.dtype.itemsize // K_BYTES), (problem.batch or (1,))[0]
    mn_major = (not problem.a.has_contiguous_rows) + problem.b.has_contiguous_rows
    k_tiles_us = gpu.multiply * _K_TILE * k_tiles * (1 + _MN_MAJOR * mn_major)
    launched, next_tile, found = gpu.launch * _LAUNCH, gpu.load * _NEXT, []
    # Words of float32 are written as fast as pairs of 16 bits. C, which is read as D is written, is not measured.
    write = gpu.load * _WRITE * (1 if problem.c is None else 2)
    for tile_m, tile_n, pingpong, ctas, share, rate in _tiles(configs):
        tiles = -(-m // tile_m) * -(-n // tile_n) * batch
        waves = -(-tiles // min(gpu.multiprocessors, ctas))
        beyond = 1 - m * n * batch / (tiles * tile_m * tile_n)
        products = k_tiles_us * share / rate
        written = write * share * (1 - _BEYOND * beyond)
        if pingpong:
            tile = (products**4 + ((products + written + next_tile) / 2) ** 4) ** 0.25
            found.append(launched + waves * (tile + next_tile) + written)
        else:
            found.append(launched + waves * (products + written / 2 + next_tile))
    return found


@cache_for_configs
def _tiles(configs: Sequence[UnalignedGemmConfig]) -> list[tuple[int, int, int, int, float, float]]:
    """Return of each config its rows, columns, ping-pong, CTAs, outputs by 128 x 128, and the rate of its tile."""
    return [
        (x.tile_m, x.tile_n, x.pingpong, x.ctas, x.tile_elements / 2**14, _RATES.get((x.tile_m, x.tile_n), 0.5))
        for x in configs
    ]


#: Share of the predicted time that `mma_sync_small` must take less than: assumed.
_MARGIN = 0.9


def faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel that splits K, or that of small products, where that pays."""
    if is_faster(problem, cost, gpu, split=True):
        return MMA_SYNC.name
    return MMA_SYNC_SMALL.name if is_faster_small(problem, cost * _MARGIN, gpu) else None


SPEC = KernelSpec(
    name="hopper_gemm_unaligned",
    operation="gemm",
    summary="float16, bfloat16 and K-major TF32, unaligned C and D, A and B with leading dimensions "
    "of multiples of 16 bytes: wgmma, TMA",
    package=__package__,
    archs=(HOPPER,),
    configs=(
        UnalignedGemmConfig(),
        UnalignedGemmConfig(tile_n=192, stages=4),
        UnalignedGemmConfig(tile_n=256, stages=3, pingpong=0),
        UnalignedGemmConfig(tile_m=256, tile_n=192, stages=3, pingpong=0),
        # For float32, whose results take twice the shared memory.
        UnalignedGemmConfig(stages=4),
        UnalignedGemmConfig(tile_n=192, stages=3),
        UnalignedGemmConfig(tile_m=64, stages=6),
        UnalignedGemmConfig(tile_m=64, tile_n=64, stages=8),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
    faster_alternative=faster_alternative,
)
