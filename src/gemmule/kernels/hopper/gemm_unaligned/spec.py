"""hopper_gemm_unaligned, for C and D of any alignment: its limits, launch recipe and cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gemmule.core.alternatives import Alternatives
from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType, Precision
from gemmule.core.epilogue_inputs import epilogue_params, epilogue_signature, why_not_inputs
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs, cache_last_call
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem, OperandTypes
from gemmule.core.row_major import row_result
from gemmule.core.signature import adds_key, major_keys, majors_of
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.hopper.cost.functions import function_us
from gemmule.kernels.hopper.cost.operation import k_tiles_of, why_not_split
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, refuse_types
from gemmule.kernels.hopper.tile_config import MAX_SHARED_BYTES, MMA_M, THREADS
from gemmule.kernels.hopper.tma_tiles import operand_params, row_params, scale_params
from gemmule.kernels.mma_sync.cost import is_faster
from gemmule.kernels.mma_sync.small.spec import SPEC as MMA_SYNC_SMALL
from gemmule.kernels.mma_sync.small.spec import is_faster as is_faster_small
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC
from gemmule.kernels.parts.hopper_facts import SMS

from .config import UnalignedGemmConfig

DTYPES = (BFLOAT16, FLOAT16, FLOAT32)


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    if problem.a.dtype == FLOAT32 and not (problem.a.has_contiguous_rows and problem.b.has_contiguous_cols):
        return "A or B is float32 and not contiguous along K; wgmma takes only 16-bit operands MN-major"
    return why_not_inputs(problem) or refuse_hopper(problem, arch, tma="ab")


def why_not(problem: GemmProblem, arch: Arch, config: UnalignedGemmConfig) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    del arch
    if problem.a.dtype == FLOAT32 and config.on(SMS) in _OF_HALVES:
        return f"config {config} is offered to elements of 16 bits"
    needed = config.shared_bytes_of(problem.d.dtype.itemsize)
    if needed > MAX_SHARED_BYTES:
        return f"config {config}: {needed} bytes of shared memory for {problem.d.dtype}, of at most {MAX_SHARED_BYTES}"
    return why_not_split(problem, config.cluster_k)


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    if types.a == FLOAT32 and types.precision is not Precision.TF32:
        return "A and B are float32; this kernel rounds them to TF32, for precision='tf32'"
    if types.a != FLOAT32 and types.d in DTYPES and (types.c is None or types.c == types.d):
        types = types._replace(c=None, d=types.a)
    return refuse_types(DTYPES, types, arch)


def signature(problem: GemmProblem, config: UnalignedGemmConfig) -> Signature:
    """Specialise for the types, the direction in which A and B are contiguous, whether there is a C, the epilogue."""
    del config
    oriented, _, _ = row_result(problem)
    plain = _signature(problem.a.dtype, majors_of(oriented), problem.c is not None)
    other = (("d", problem.d.dtype.name),) if problem.d.dtype != problem.a.dtype else ()
    return (*plain, *other, *epilogue_signature(oriented.epilogue))


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
    """Return the launch recipe: as many clusters as share the tiles, tensor maps of A and B, and C and D in place."""
    problem, first, second = row_result(problem)
    batch = problem.batch or (1,)
    rows, cols = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    tiles = -(-problem.m // rows) * -(-problem.n // cols) * batch[0]
    # The one place where B turns from (K, N), as the API has it, to (N, K), as CuTe has it.
    params = (
        *operand_params(first, problem.a, batch, config.tile_m, config.cluster_n),
        *operand_params(second, problem.b.transposed(), batch, config.tile_n, config.cluster_m),
        *row_params(problem, batch),
        *scale_params(problem),
        *epilogue_params(problem.epilogue, batch[0], problem.scale_type),
    )
    return Launch(
        grid=(min(tiles, config.max_active_clusters) * config.cluster_size, 1, 1),
        cluster=(config.cluster_size, 1, 1),
        block=(THREADS, 1, 1),
        shared_bytes=config.shared_bytes_of(problem.d.dtype.itemsize),
        params=params,
        overlaps=True,
    )


#: Microseconds on an H200, fitted to calls of 88 odd products (records 20261129T113946 and 20261129T120337): a launch;
#: multiplying 128 x 128 of a k-tile, and columns that each wgmma costs more; loading 256 rows of it, what an MN-major
#: operand adds, and each further CTA of a multicast; the next tile.
_LAUNCH, _MULTIPLY, _MORE_COLUMNS, _LOAD, _MN_MAJOR, _MULTICAST, _NEXT = 1.88, 0.286, 2, 0.26, 0.121, 0.49, 0.395
#: Factor on loads of MN-major columns that are no multiple of 64: in rows of 64 bytes.
_NARROW = 1.87
#: Writing 128 x 128, by one warpgroup; by two; from more than 128 accumulators a thread, which leave registers for
#: fewer vectors in flight; bytes of a result that are written in one.
_WRITE, _SHARED, _FEW_REGISTERS, _BYTES = 1.06, 0.885, 1.56, 1.95e6
#: Bytes that an H200's memory gives in one, at most.
_READ_BYTES = 4.4e6
#: Columns of 64 rows of accumulators: 128 a thread.
_FEW = 256
#: Reading C, and 128 x 128 of it: of record 20261130T001854, five products in a wave of tiles and in several.
_READ_C = 3.5, 6.0
#: The start of a cluster; exchanging partial sums, and 64 x 64 of them.
_CLUSTER, _EXCHANGE, _SUMS = 0.136, 0.139, 0.851


def costs(problem: GemmProblem, configs: Sequence[UnalignedGemmConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: tiles that an SM computes one after another, and their cost.

    With ping-pong one warpgroup writes while the other multiplies, but for the last tile; else both write a part.
    """
    m, n, batch = problem.m, problem.n, (problem.batch or (1,))[0]
    a_major, b_major = not problem.a.has_contiguous_rows, problem.b.has_contiguous_rows
    if not problem.d.is_row_major:
        m, n, a_major, b_major = n, m, b_major, a_major
    more = gpu.load * function_us(problem.epilogue)
    k_tiles, reads_c = k_tiles_of(problem), problem.c is not None
    # Words of float32 are written as fast as pairs of 16 bits.
    launched, found = gpu.launch * _LAUNCH, []
    least = (launched + gpu.moved_us((1 + reads_c) * m * n * batch * problem.d.dtype.itemsize, _BYTES)) ** 6
    read = problem.a.distinct_bytes(problem.batch) + problem.b.distinct_bytes(problem.batch)
    least += (launched + gpu.moved_us(read, _READ_BYTES)) ** 6
    next_tile = gpu.load * _NEXT
    for one in _tiles(configs, gpu, a_major, b_major):
        rows, cols, pingpong, cluster_k, clusters, k_tile, write, read_c, share, exchanged, cluster = one
        waves = -(-(-(-m // rows) * -(-n // cols) * batch) // clusters)
        products = k_tile * -(-k_tiles // cluster_k) + exchanged
        written = write + (read_c if reads_c else 0.0) + share * more
        if pingpong:
            tile = (products**4 + ((products + written + next_tile) / 2) ** 4) ** 0.25
            total = launched + waves * (tile + next_tile) + written
        else:
            total = launched + waves * (products + written * _SHARED + next_tile)
        found.append(((total + cluster) ** 6 + least) ** (1 / 6))
    return found


class _Tile(NamedTuple):
    """Terms of the cost of a config for operands of given major modes: microseconds, but for the first five."""

    #: rows, cols: Of a cluster's tiles.
    rows: int
    cols: int
    pingpong: int
    cluster_k: int
    clusters: int  #: The most clusters at once.
    k_tile: float  #: Loading and multiplying a k-tile.
    write: float
    read_c: float  #: Reading C before it is written.
    share: float  #: Share of 128 x 128 that a CTA writes.
    exchanged: float  #: Exchanging partial sums.
    cluster: float  #: Starting a cluster.


@cache_for_configs
def _tiles(configs: Sequence[UnalignedGemmConfig], gpu: GpuRates, a_major: bool, b_major: bool) -> list[_Tile]:
    return [_tile_of(one, gpu, a_major, b_major) for one in configs]


def _tile_of(one: UnalignedGemmConfig, gpu: GpuRates, a_major: bool, b_major: bool) -> _Tile:
    share, k = one.tile_elements / 2**14, one.cluster_k
    exchanged = _EXCHANGE + _SUMS * 4 * share * (1 - 1 / k) if k > 1 else 0.0
    multiply = (gpu.multiply * _MULTIPLY * one.tile_m * (one.tile_n + _MORE_COLUMNS) / 2**14) ** 4
    load = gpu.load * _LOAD * one.tile_m * _shared(one.cluster_n) / 256 * (1 + _MN_MAJOR * a_major)
    # MN-major columns may be loaded in rows of less than 128 bytes.
    mn_major = _NARROW if b_major and one.tile_n % MMA_M > 0 else 1 + _MN_MAJOR * b_major
    load += gpu.load * _LOAD * one.tile_n * _shared(one.cluster_m) / 256 * mn_major
    return _Tile(
        rows=one.tile_m * one.cluster_m,
        cols=one.tile_n * one.cluster_n,
        pingpong=one.pingpong,
        cluster_k=k,
        clusters=max(min(gpu.multiprocessors // one.cluster_size, one.max_active_clusters), 1),
        k_tile=(multiply + load**4) ** 0.25,
        write=gpu.load * _WRITE * share / k * (_FEW_REGISTERS if one.mma_tiles_m * one.columns > _FEW else 1.0),
        read_c=gpu.load * (_READ_C[0] + _READ_C[1] * share / k),
        share=share / k,
        exchanged=gpu.load * exchanged,
        cluster=gpu.load * _CLUSTER if one.cluster_size > 1 else 0.0,
    )


def _shared(ctas: int) -> float:
    """Return how long a load takes that so many CTAs share, as a share of each one's own."""
    return (1 + _MULTICAST * (ctas - 1)) / ctas


#: Shares of the predicted time that `mma_sync_small` must take less than, and CTAs of mma.sync with tiles of their own,
#: as in batches of small matrices: assumed.
_MARGIN, _MUCH_FASTER = 0.9, 0.7


def _is_mma_sync_faster(problem: GemmProblem, cost: float, gpu: GpuRates) -> bool:
    return is_faster(problem, cost, gpu, split=True) or is_faster(problem, cost * _MUCH_FASTER, gpu)


def _is_small_faster(problem: GemmProblem, cost: float, gpu: GpuRates) -> bool:
    return is_faster_small(problem, cost * _MARGIN, gpu)


#: Configs that were timed with elements of 16 bits only (record 20261130T141849), and are offered to these.
_OF_HALVES = (
    *(UnalignedGemmConfig(tile_m=64, tile_n=192, cluster_m=ctas) for ctas in (2, 4)),
    UnalignedGemmConfig(tile_n=64, stages=8, pingpong=0, cluster_n=4),
    UnalignedGemmConfig(tile_n=96, stages=7, pingpong=0, cluster_m=4),
    UnalignedGemmConfig(tile_m=64, tile_n=64, stages=12, cluster_m=2, cluster_n=2),
    UnalignedGemmConfig(tile_m=64, tile_n=96, stages=8, cluster_k=4),
    *(UnalignedGemmConfig(tile_m=64, tile_n=32, stages=12, cluster_k=k) for k in (1, 4)),
)

SPEC = KernelSpec(
    name="hopper_gemm_unaligned",
    operation="gemm",
    summary="float16, bfloat16 and K-major TF32, unaligned C and D, A and B aligned to 16 bytes: wgmma, TMA, split-K",
    package=__package__,
    archs=(HOPPER,),
    configs=(
        UnalignedGemmConfig(),
        UnalignedGemmConfig(tile_n=192, stages=4),
        UnalignedGemmConfig(tile_n=256, stages=3, pingpong=0),
        UnalignedGemmConfig(tile_m=256, tile_n=192, stages=3, pingpong=0),
        # A stage less for results of 32-bit elements.
        UnalignedGemmConfig(stages=4),
        UnalignedGemmConfig(tile_n=192, stages=3),
        UnalignedGemmConfig(tile_m=64, stages=6),
        UnalignedGemmConfig(tile_m=64, tile_n=64, stages=8),
        UnalignedGemmConfig(stages=6, pingpong=0),
        UnalignedGemmConfig(tile_n=160, pingpong=0),
        UnalignedGemmConfig(tile_m=192, stages=4),
        UnalignedGemmConfig(tile_m=64, stages=6, cluster_m=2),
        UnalignedGemmConfig(tile_m=64, stages=5, cluster_m=2, cluster_k=2),
        *(UnalignedGemmConfig(tile_m=64, tile_n=64, stages=8, cluster_k=k) for k in (2, 4, 8)),
        *(UnalignedGemmConfig(tile_m=64, stages=5, cluster_k=k) for k in (2, 4)),
        UnalignedGemmConfig(stages=4, pingpong=0, cluster_k=4),
        *_OF_HALVES,
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
    faster_alternative=Alternatives((MMA_SYNC.name, _is_mma_sync_faster), (MMA_SYNC_SMALL.name, _is_small_faster)),
    epilogues=True,
)
