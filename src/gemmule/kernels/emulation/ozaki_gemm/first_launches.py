"""The first launches of Ozaki scheme II: the guard's words, pairs of lines, which may refuse, and all lines' scales."""

from __future__ import annotations

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT64, INT32, Precision
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, Param, ScalarParam, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result
from gemmule.core.signature import every_signature, major_keys, majors_of
from gemmule.core.spec import Buildable, Signature
from gemmule.kernels.emulation.guard import (
    furthest_below,
    least_exponents,
    least_magnitude,
    least_share,
    sample_period,
)
from gemmule.kernels.emulation.guard_words import SHORTFALL, SHORTFALL_WORDS, word_param
from gemmule.kernels.emulation.launch_spec import emulation_spec, launch_us
from gemmule.kernels.emulation.ozaki_config import (
    EARLY_PERIOD,
    PAIR_CTAS,
    PAIR_PITCH,
    PAIR_SIDE,
    PAIR_THREADS,
    THREADS,
    WORDS_THREADS,
    ScalesConfig,
)
from gemmule.kernels.emulation.ozaki_guard.spec import bound_columns, sampled_length
from gemmule.kernels.emulation.product_forms import (
    COMPLEX_FORMS,
    forms_of,
    lead,
    moduli_key,
    native_room,
)


def _lines(problem: GemmProblem) -> tuple[tuple[str, str, StridedMatrix], ...]:
    """Return of A and of B: the operand, what its lines along K are, and the matrix with these as rows."""
    oriented, first, second = row_result(problem)
    return (first, "rows", oriented.a), (second, "columns", oriented.b.transposed())


def signature(problem: GemmProblem, config: ScalesConfig) -> Signature:
    """Specialise for the direction in which A and B are contiguous, and the number of moduli."""
    del config
    oriented, _, _ = row_result(problem)
    return (*major_keys(*majors_of(oriented)), *moduli_key(problem.precision), *forms_of(problem))


def words_launch(problem: GemmProblem, config: ScalesConfig) -> Launch:
    """Return the launch recipe of a thread that sets the guard's words."""
    del config
    room = native_room(row_result(problem)[0])
    words = (0, *furthest_below(problem.k, problem.a.dtype), 0, 0, *room, 0, 0, 0)
    params: tuple[Param, ...] = (
        TensorParam(SHORTFALL, (SHORTFALL_WORDS,), ()),
        *(ScalarParam(f"word {number}", INT32, one) for number, one in enumerate(words)),
    )
    return Launch(grid=(1, 1, 1), block=(WORDS_THREADS, 1, 1), params=params, overlaps=True)


def pairs_launch(problem: GemmProblem, config: ScalesConfig) -> Launch:
    """Return the launch recipe of a cluster that compares some pairs of lines."""
    del config
    lines = [TensorParam(operand, (one.cols, one.rows), (lead(one),)) for operand, _, one in _lines(problem)]
    sampling: tuple[Param, ...] = (
        TensorParam(SHORTFALL, (SHORTFALL_WORDS,), ()),
        ScalarParam("period", INT32, sample_period(problem.k)),
        ScalarParam("least share", FLOAT64, least_share(problem.k, problem.a.dtype)),
    )
    grid = (PAIR_CTAS, 1, 1)
    doubles = PAIR_SIDE * (2 * PAIR_PITCH + PAIR_SIDE + 2)
    shared = doubles * FLOAT64.itemsize + PAIR_SIDE * PAIR_SIDE // 8 + 64
    return Launch(
        grid=grid,
        block=(PAIR_THREADS, 1, 1),
        cluster=grid,
        params=(*lines, *sampling),
        shared_bytes=shared,
        overlaps=True,
    )


def scales_ctas(lines: int, along: bool, config: ScalesConfig) -> int:
    """Return the CTAs of an operand's lines: of K-major ones, of which some are first, a multiple."""
    ctas = -(-lines // (config.together if along else config.across))
    return -(-ctas // EARLY_PERIOD) * EARLY_PERIOD if along else ctas


def scales_launch(problem: GemmProblem, config: ScalesConfig) -> Launch:
    """Return the launch recipe of the scales: a CTA for some contiguous lines."""
    params: list[Param] = []
    ctas = 0
    for operand, name, matrix in _lines(problem):
        params.append(TensorParam(operand, (matrix.cols, matrix.rows), (lead(matrix),)))
        params.append(TensorParam(f"scales of {name}", (matrix.rows,), ()))
        ctas += scales_ctas(matrix.rows, matrix.has_contiguous_rows, config)
    if problem.precision is Precision.OZAKI:
        oriented, _, _ = row_result(problem)
        params.append(word_param(SHORTFALL))
        params.append(ScalarParam("period", INT32, sample_period(problem.k)))
        params.append(ScalarParam("least magnitude", INT32, least_magnitude(problem.k, problem.a.dtype)))
        params.append(ScalarParam("least exponents", INT32, least_exponents(problem.k, problem.a.dtype)))
        sampled = sampled_length(problem.k)
        for name, lines in (("rows", oriented.m), ("columns", bound_columns(oriented))):
            params.append(TensorParam(f"magnitudes of {name}", (sampled, lines), (sampled,)))
    shared = THREADS * 16 + 64
    return Launch(grid=(ctas, 1, 1), block=(THREADS, 1, 1), params=tuple(params), shared_bytes=shared, overlaps=True)


#: Microseconds of a launch of the scales, and the share of memory's rate that they read with.
_LAUNCHED, _SHARE = 5.3, 0.907


def scales_us(problem: GemmProblem, config: ScalesConfig, gpu: GpuRates) -> float:
    """Return roughly the microseconds of the scales."""
    del config
    elements = problem.m * problem.k + problem.k * problem.n
    return gpu.launch * _LAUNCHED + elements * problem.a.dtype.itemsize / (_SHARE * gpu.memory)


def _parts_signatures(arch: Arch) -> tuple[Signature, ...]:
    del arch
    keys = (*major_keys("k", "k"), *moduli_key(Precision.OZAKI))
    return tuple((*keys, *forms) for forms in COMPLEX_FORMS)


def _guarded_signatures(arch: Arch) -> tuple[Signature, ...]:
    real = every_signature(a_major="km", b_major="nk", moduli=["guarded"])(arch)
    return (*real, *_parts_signatures(arch))


def build_words(config: ScalesConfig, signature: Signature) -> Buildable:
    """Return the compiler's input for the guard's words."""
    from .words import buildable

    return buildable(config, dict(signature))


def _build_pairs(config: ScalesConfig, signature: Signature) -> Buildable:
    """Return the compiler's input for pairs of lines."""
    from .early_refusal import buildable

    return buildable(config, dict(signature))


#: The guard's words, behind the launch that makes the parts of complex elements.
SET_WORDS = emulation_spec(
    name="ozaki_words",
    summary="the words that launches of the guard read and raise",
    package=__package__,
    build=build_words,
    configs=(ScalesConfig(),),
    signatures=_parts_signatures,
    signature=signature,
    launch=words_launch,
    batch_dims=0,
    cost=launch_us,
)
#: Pairs of lines, behind the words.
PAIRS = emulation_spec(
    name="ozaki_pairs",
    summary="samples of some pairs of lines, which may refuse emulation",
    package=__package__,
    build=_build_pairs,
    configs=(ScalesConfig(),),
    signatures=_guarded_signatures,
    signature=signature,
    launch=pairs_launch,
    batch_dims=0,
    cost=launch_us,
)
#: Scales and magnitudes, while pairs are compared.
SCALES = emulation_spec(
    name="ozaki_scales",
    summary="powers of two that make integers of lines, and samples of these in float8_e5m2, rounded down",
    package=__package__,
    configs=(ScalesConfig(),),
    signatures=_guarded_signatures,
    signature=signature,
    launch=scales_launch,
    batch_dims=0,
    cost=scales_us,
)
