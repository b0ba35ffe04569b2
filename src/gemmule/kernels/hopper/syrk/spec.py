"""hopper_syrk, a matrix times its own transpose: its limits, launch recipe and cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch, Param
from gemmule.core.problem import GemmProblem, inner_problem
from gemmule.core.row_major import row_result
from gemmule.core.signature import adds_key, major_keys, type_keys
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.hopper.cost.operation import operation_of
from gemmule.kernels.hopper.cost.times import rates_of, times_us
from gemmule.kernels.hopper.gemm import spec as gemm
from gemmule.kernels.hopper.gemm_unaligned import spec as gemm_unaligned
from gemmule.kernels.hopper.refusals import HOPPER
from gemmule.kernels.hopper.tile_config import EPI_TILE_N, K_BYTES
from gemmule.kernels.hopper.tma_tiles import result_params, row_param, why_not_stored, why_not_tma

from .config import SyrkConfig

DTYPES = (BFLOAT16, FLOAT16, FLOAT32)
#: Tiles that 32-bit numbers count, and those of a wave beyond.
_MOST_TILES = 1 << 30
#: Largest predicted share of other kernels' time with which this one is chosen: the error of predictions.
_EXPECTED = 0.92
#: Share added for tiles in several waves, for each 64 columns beyond 128: between measurements on an H200.
_WIDER = 0.08
#: Writes of a tile by TMA, and the same time for threads, which take longer.
_WRITES, _THREADS_WRITE = 2.0, 5.4


def why_not(problem: GemmProblem, arch: Arch, config: SyrkConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    if config.tiles(problem.m, (problem.batch or (1,))[0]) > _MOST_TILES:
        return f"config {config}: the result has more than {_MOST_TILES} tiles, which 32-bit numbers count"
    if not _by_threads(problem):
        return gemm.why_not(problem, arch, config)
    if config.epi_tile_n(problem.d.dtype.itemsize) < EPI_TILE_N or config.cluster_size > 1:
        return f"config {config}: threads write epilogue tiles of {EPI_TILE_N} columns, without clusters"
    if not config.holds_rows:
        return f"config {config}: there is no shared memory for the rows that threads write"
    return None


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    if not problem.own_transpose:
        return "B is not A transposed, in the same memory: the result need not be symmetric"
    if problem.c is not None:
        return "C is added, so that the result need not be symmetric"
    if problem.a.dtype not in DTYPES or problem.d.dtype not in (problem.a.dtype, FLOAT32):
        types = ", ".join(map(str, DTYPES))
        return (
            f"A is {problem.a.dtype} and the output {problem.d.dtype}; this kernel takes {types}, for it or {FLOAT32}"
        )
    other = gemm_unaligned.SPEC if _by_threads(problem) else gemm.SPEC
    assert other.refuses is not None
    return other.refuses(problem, arch)


@cache_last_call
def _by_threads(problem: GemmProblem) -> bool:
    """Return whether threads write D, which TMA cannot store."""
    oriented, _, _ = row_result(inner_problem(problem, SPEC.batch_dims))
    return bool(why_not_tma("d", oriented.d, oriented.batch) or why_not_stored(oriented.d))


def signature(problem: GemmProblem, config: SyrkConfig) -> Signature:
    """Specialise for the types, and the direction in which A is contiguous."""
    del config
    oriented, _, _ = row_result(problem)
    major = "k" if oriented.a.has_contiguous_rows else "m"
    return _signature(problem.a.dtype, problem.d.dtype, major, "threads" if _by_threads(problem) else "boxes")


def _signature(element: DType, out: DType, major: str, written: str) -> Signature:
    majors = (major, {"k": "k", "m": "n"}[major])
    return (*type_keys(element, element, out), *major_keys(*majors), *adds_key(False), ("written", written))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination."""
    del arch
    kinds = [(out, along, "boxes") for out in (None, FLOAT32) for along in "km"] + [(None, "k", "threads")]
    halves = tuple(_signature(element, out or element, *rest) for element in DTYPES[:2] for out, *rest in kinds)
    return (*halves, _signature(FLOAT32, FLOAT32, "k", "boxes"))


def launch(problem: GemmProblem, config: SyrkConfig) -> Launch:
    """Return the launch recipe: that of `hopper_gemm`, with the transpose of D in the place of C."""
    plain = gemm.launch(problem, config)
    oriented, _, _ = row_result(problem)
    batch, d = problem.batch or (1,), oriented.d
    clusters = min(config.tiles(problem.m, batch[0]), config.max_active_clusters)
    if _by_threads(problem):
        written: tuple[Param, ...] = (row_param("d", d, batch),)
    else:
        item = d.dtype.itemsize
        box = (K_BYTES // item, config.epi_tile_n(item))
        written = (*result_params("d", d, batch, box, swap_ab=True), *plain.params[6:8])
    params = (*plain.params[:4], *written, *plain.params[8:])
    return dataclasses.replace(plain, grid=(clusters * config.cluster_size, 1, 1), params=params)


def costs(problem: GemmProblem, configs: Sequence[SyrkConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: those of `hopper_gemm`, with fewer tiles, written twice."""
    operation = operation_of(problem)
    tiles = [config.tiles(problem.m, operation.batch) for config in configs]
    writes = _THREADS_WRITE if _by_threads(problem) else _WRITES
    times = times_us(operation._replace(tiles=tiles, writes=writes), rates_of(configs, gpu)).tolist()
    return [time * _wider(config, count) for time, config, count in zip(times, configs, tiles, strict=True)]


def _wider(config: SyrkConfig, tiles: int) -> float:
    """Return how much longer tiles of several waves take than is predicted for those of `hopper_gemm`."""
    return 1 + _WIDER * max(config.tile_n - 128, 0) / 64 if tiles > config.max_active_clusters else 1.0


def faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the name of the kernel that computes all tiles where it is expected to be faster, else None."""
    other = gemm_unaligned.SPEC if _by_threads(problem) else gemm.SPEC
    return other.name if other.least_cost(problem, gpu) * _EXPECTED <= cost else None


SPEC = KernelSpec(
    name="hopper_syrk",
    operation="gemm",
    summary="a matrix times its own transpose, float16, bfloat16, K-major TF32: half of the tiles, each written twice",
    package=__package__,
    archs=(HOPPER,),
    configs=(
        SyrkConfig(),
        SyrkConfig(tile_n=160, stages=5),
        SyrkConfig(tile_n=144),
        SyrkConfig(tile_n=192, stages=4),
        SyrkConfig(tile_n=96),
        SyrkConfig(tile_m=64, tile_n=192),
        SyrkConfig(tile_m=64, tile_n=160),
        SyrkConfig(tile_m=64, tile_n=128, stages=8),
        SyrkConfig(tile_m=64, tile_n=96, stages=9),
        SyrkConfig(tile_m=64, tile_n=64, stages=12),
        SyrkConfig(tile_m=64, tile_n=64, stages=8, cluster_k=2),
        SyrkConfig(tile_m=64, tile_n=64, stages=8, cluster_k=4),
        # With shared memory left for the lines that threads write.
        SyrkConfig(stages=5),
        SyrkConfig(tile_m=64, tile_n=128, stages=6),
        SyrkConfig(tile_m=64, tile_n=64, stages=8),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
    faster_alternative=faster_alternative,
    is_syrk=True,
)
