"""The kernels after ozaki_gemm's scales: residues, their products, and the CRT reconstruction."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import (
    COMPLEX64,
    COMPLEX128,
    FEWEST_INT8_PRODUCTS,
    FLOAT64,
    INT8,
    INT8_PRODUCTS,
    Precision,
)
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, Param, ScalarParam, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.signature import adds_key, every_signature, major_keys, majors_of
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.hopper import tile_config
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, refuse_no_config
from gemmule.kernels.hopper.tma_tiles import operand_params, row_param, row_params, scale_params

from .guard import CHOICES
from .guard_words import COMPLEX_FORMS, forms_of, guard_params, guarded_key, planes_key, planes_of, with_guarded
from .ozaki_config import (
    GROUP,
    LINES,
    PARTS,
    PITCH,
    PLANES,
    RECONSTRUCTION_CTAS,
    RESIDUES_CTAS,
    RUN,
    SLICE,
    THREADS,
    ProductsConfig,
    ReconstructionConfig,
    ResiduesConfig,
)
from .residues import MOST_K

_MODULI = ("14", "15", "16", "guarded")
#: Microseconds of a launch on an H200; and bytes that residues and reconstruction read and write in one.
_LAUNCH, _RESIDUES_BYTES, _RECONSTRUCTION_BYTES = 2.0, 2.5e6, 3.0e6


def moduli_key(precision: Precision) -> Signature:
    """Return the key of how many moduli there are."""
    return (("moduli", "guarded" if precision is Precision.OZAKI else str(INT8_PRODUCTS[precision])),)


def most_moduli(problem: GemmProblem) -> int:
    """Return how many moduli there are at most, for which there must be memory."""
    guarded = problem.precision is Precision.OZAKI
    return CHOICES[problem.a.dtype][-1] if guarded else INT8_PRODUCTS[problem.precision]


def fewest_moduli(problem: GemmProblem) -> int:
    """Return how many moduli ordinary numbers need."""
    guarded = problem.precision is Precision.OZAKI
    return CHOICES[problem.a.dtype][0] if guarded else INT8_PRODUCTS[problem.precision]


#: Of guarded products by how many there are at most, which tells their types apart: how many ordinary numbers need, and
#: of them for each modulus.
_GUARDED_BATCHES = {
    planes * choices[-1]: (planes * choices[0], planes) for choices in CHOICES.values() for planes in (1, PLANES)
}


def _guarded_batch(problem: GemmProblem) -> tuple[int, int]:
    """Return how many products of residues ordinary numbers need, and how many there are for each modulus."""
    guarded = problem.precision is Precision.OZAKI
    return _GUARDED_BATCHES[problem.batch[0]] if guarded else (problem.batch[0], 1)


def lead(matrix: StridedMatrix) -> int:
    """Return the elements from one contiguous line of a matrix to the next."""
    return matrix.row_stride if matrix.has_contiguous_rows else matrix.col_stride


def depth_of(problem: GemmProblem) -> int:
    """Return K in the elements of a plane."""
    return problem.k // (PARTS if planes_of(problem) > 1 else 1)


def _why_not_residues(problem: GemmProblem, arch: Arch) -> str | None:
    del arch
    if problem.a.dtype not in CHOICES or problem.precision not in FEWEST_INT8_PRODUCTS:
        return f"A is {problem.a.dtype} and B {problem.b.dtype}; this kernel runs after ozaki_gemm"
    return None


def _residues_signature(problem: GemmProblem, config: ResiduesConfig) -> Signature:
    del config
    return (*major_keys(*majors_of(problem)), *moduli_key(problem.precision), *forms_of(problem))


def _residues_signatures(arch: Arch) -> tuple[Signature, ...]:
    real = every_signature(a_major="km", b_major="kn", moduli=_MODULI)(arch)
    complex_keys = (*major_keys("k", "k"), *moduli_key(Precision.OZAKI))
    return (*real, *((*complex_keys, *forms) for forms in COMPLEX_FORMS))


def _residues_launch(problem: GemmProblem, config: ResiduesConfig) -> Launch:
    """Return the launch recipe: CTAs for the lines of A, then for those of B."""
    count = most_moduli(problem) * planes_of(problem)
    length = -(-depth_of(problem) // SLICE) * SLICE
    params: list[Param] = []
    ctas, shared = 0, 0
    for operand, matrix, name in (("a", problem.a, "rows"), ("b", problem.b.transposed(), "columns")):
        along = matrix.has_contiguous_rows
        params += [
            TensorParam(operand, (matrix.cols, matrix.rows), (lead(matrix),)),
            TensorParam(name, (matrix.rows,), ()),
            TensorParam(f"residues of {name}", (length, matrix.rows, count), (length, length * matrix.rows)),
        ]
        k_tiles = length // SLICE
        if along:
            ctas += -(-k_tiles * matrix.rows // (THREADS // 32 * config.runs))
        else:
            ctas += k_tiles * -(-matrix.rows // LINES)
            shared = PITCH * LINES * 8 + 64
    every = (*params, *guard_params(problem.precision))
    grid = (min(ctas, RESIDUES_CTAS), 1, 1)
    return Launch(grid=grid, block=(THREADS, 1, 1), params=every, shared_bytes=shared, overlaps=True)


def _residues_cost(problem: GemmProblem, config: ResiduesConfig, gpu: GpuRates) -> float:
    del config
    written = fewest_moduli(problem) * planes_of(problem) * depth_of(problem)
    moved = (problem.a.rows + problem.b.cols) * (problem.k * problem.a.dtype.itemsize + written)
    return gpu.launch * _LAUNCH + moved / min(_RESIDUES_BYTES, gpu.memory)


RESIDUES = KernelSpec(
    name="ozaki_residues",
    operation="gemm",
    summary="float64 to integers and these to int8 residues for 15 moduli, along K",
    package=f"{__package__}.ozaki_residues",
    archs=(HOPPER,),
    configs=(ResiduesConfig(), ResiduesConfig(runs=1), ResiduesConfig(runs=4)),
    signatures=_residues_signatures,
    why_not=refuse_no_config,
    signature=_residues_signature,
    launch=_residues_launch,
    batch_dims=0,
    refuses=_why_not_residues,
    cost=_residues_cost,
    cost_in_us=True,
)


def _why_not_products(problem: GemmProblem, arch: Arch) -> str | None:
    if problem.a.dtype != INT8 or problem.b.dtype != INT8 or problem.d.dtype.name != "uint8":
        return (
            f"A is {problem.a.dtype} and B {problem.b.dtype}; this kernel takes the residues that ozaki_residues makes"
        )
    if problem.k % SLICE or problem.n % GROUP or not problem.batch:
        return f"N={problem.n} and K={problem.k} are not whole groups of {GROUP} and k-tiles of {SLICE}"
    if problem.precision is Precision.OZAKI and problem.batch[0] not in _GUARDED_BATCHES:
        known = ", ".join(map(str, _GUARDED_BATCHES))
        return f"the batch has {problem.batch[0]} products; of guarded ones this kernel takes {known}"
    if problem.k > MOST_K:
        return f"K={problem.k}: more than {MOST_K} products may overflow the accumulators"
    return refuse_hopper(problem, arch, tma="ab")


def _products_signature(problem: GemmProblem, config: ProductsConfig) -> Signature:
    del config
    planes = planes_key(_guarded_batch(problem)[1])
    return (("element", INT8.name), *adds_key(problem.c is not None), *guarded_key(problem.precision), *planes)


def _products_signatures(arch: Arch) -> tuple[Signature, ...]:
    real = every_signature(element=[INT8], adds=("no", "yes"))
    guarded = every_signature(element=[INT8], adds=("no", "yes"), guarded=["yes"])(arch)
    return (*with_guarded(real)(arch), *((*one, *planes_key(PLANES)) for one in guarded))


def _tiles(problem: GemmProblem, config: ProductsConfig) -> int:
    """Return how many tiles of whole clusters there are."""
    rows, cols = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    return -(-problem.m // rows) * -(-problem.n // cols) * math.prod(problem.batch)


def product_grid(problem: GemmProblem, config: ProductsConfig) -> tuple[int, int, int]:
    """Return as many CTAs as share the tiles."""
    return (min(_tiles(problem, config), config.max_active_clusters) * config.cluster_size, 1, 1)


def _products_launch(problem: GemmProblem, config: ProductsConfig) -> Launch:
    """Return the launch recipe: as many CTAs as share the tiles, maps of A and B, and D as it lies."""
    return Launch(
        grid=product_grid(problem, config),
        block=(tile_config.THREADS, 1, 1),
        cluster=(config.cluster_size, 1, 1),
        shared_bytes=config.shared_bytes,
        params=(
            *operand_params("a", problem.a, problem.batch, config.tile_m, config.cluster_n),
            # B is (K, N) in the API, and (N, K) in CuTe.
            *operand_params("b", problem.b.transposed(), problem.batch, config.tile_n, config.cluster_m),
            row_param("d", problem.d, problem.batch),
            *guard_params(problem.precision),
        ),
        overlaps=True,
    )


#: Microseconds on an H200: a launch; and a k-tile of 128 x 256, and what a tile takes besides, by tile and
#: pingpong.
_PRODUCTS_LAUNCH, _OTHERS = 2.4, (0.8, 2.0)
_TIMES = {(128, 256, 0): (0.63, 3.2), (256, 192, 0): (0.6, 4.0), (256, 128, 0): (0.65, 3.6)}


def product_costs(problem: GemmProblem, configs: Sequence[ProductsConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: tiles that an SM computes one after another."""
    if problem.batch and problem.precision is Precision.OZAKI:
        # Ordinary numbers need the fewest moduli.
        problem = dataclasses.replace(problem, batch=_guarded_batch(problem)[:1])
    found = []
    for config in configs:
        waves = -(
            -_tiles(problem, config)
            // min(config.max_active_clusters, max(gpu.multiprocessors // config.cluster_size, 1))
        )
        each, loaded = _TIMES.get((config.tile_m, config.tile_n, config.pingpong), _OTHERS)
        tile = gpu.multiply * problem.k / SLICE * each + gpu.load * loaded
        found.append(gpu.launch * _PRODUCTS_LAUNCH + waves * config.tile_elements / 2**15 * tile)
    return found


PRODUCTS = KernelSpec(
    name="ozaki_products",
    operation="gemm",
    summary="products of int8 residues, written modulo their own number: wgmma, TMA",
    package=f"{__package__}.ozaki_products",
    archs=(HOPPER,),
    configs=(
        ProductsConfig(),
        ProductsConfig(cluster_m=1),
        ProductsConfig(tile_m=128, tile_n=192, stages=5, pingpong=1),
        ProductsConfig(tile_m=128, tile_n=128, stages=6, pingpong=1),
        ProductsConfig(tile_m=256, tile_n=192, stages=3, cluster_m=1),
        ProductsConfig(tile_m=256, tile_n=128, stages=4, cluster_m=1, cluster_n=2),
    ),
    signatures=_products_signatures,
    why_not=refuse_no_config,
    signature=_products_signature,
    launch=_products_launch,
    refuses=_why_not_products,
    costs=product_costs,
    cost_in_us=True,
)


def _why_not_reconstruction(problem: GemmProblem, arch: Arch) -> str | None:
    del arch
    if problem.d.dtype not in (FLOAT64, COMPLEX64, COMPLEX128) or problem.precision not in FEWEST_INT8_PRODUCTS:
        return f"D is {problem.d.dtype}; this kernel runs after ozaki_gemm"
    return None


def _reconstruction_signature(problem: GemmProblem, config: ReconstructionConfig) -> Signature:
    del config
    return (*adds_key(problem.c is not None), *moduli_key(problem.precision), *forms_of(problem))


def _reconstruction_signatures(arch: Arch) -> tuple[Signature, ...]:
    real = every_signature(adds=("no", "yes"), moduli=_MODULI)(arch)
    guarded = every_signature(adds=("no", "yes"), moduli=["guarded"])(arch)
    return (*real, *((*one, *forms) for forms in COMPLEX_FORMS for one in guarded))


def _reconstruction_launch(problem: GemmProblem, config: ReconstructionConfig) -> Launch:
    """Return the launch recipe: a thread for four columns of a row."""
    del config
    m, n, planes = problem.m, problem.n, planes_of(problem)
    count = most_moduli(problem) * planes
    # Where A is conjugated, the conjugate of its product with the conjugate of B is computed.
    sign = (ScalarParam("sign", problem.a.dtype, -1 if problem.a.conj else 1),) if planes > 1 else ()
    width = -(-n // GROUP) * GROUP
    params = (
        TensorParam("residues", (m, width, count), (width, m * width)),
        TensorParam("rows", (m,), ()),
        TensorParam("columns", (n,), ()),
        *row_params(problem, ()),
        *scale_params(problem),
        *sign,
        *guard_params(problem.precision),
    )
    ctas = -(-m * (width // RUN) // THREADS)
    return Launch(grid=(min(ctas, RECONSTRUCTION_CTAS), 1, 1), block=(THREADS, 1, 1), params=params, overlaps=True)


def _reconstruction_cost(problem: GemmProblem, config: ReconstructionConfig, gpu: GpuRates) -> float:
    del config
    moved = fewest_moduli(problem) * planes_of(problem)
    moved += problem.d.dtype.itemsize * (1 if problem.c is None else 2)
    return gpu.launch * _LAUNCH + problem.m * problem.n * moved / min(_RECONSTRUCTION_BYTES, gpu.memory)


RECONSTRUCTION = KernelSpec(
    name="ozaki_reconstruction",
    operation="gemm",
    summary="float64 from residues for 15 moduli, scaled back, alpha and beta applied",
    package=f"{__package__}.ozaki_reconstruction",
    archs=(HOPPER,),
    configs=(ReconstructionConfig(),),
    signatures=_reconstruction_signatures,
    why_not=refuse_no_config,
    signature=_reconstruction_signature,
    launch=_reconstruction_launch,
    batch_dims=0,
    refuses=_why_not_reconstruction,
    cost=_reconstruction_cost,
    cost_in_us=True,
)
