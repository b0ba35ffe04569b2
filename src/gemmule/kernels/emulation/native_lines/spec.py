"""Spec of the kernel that computes listed rows and columns of an emulated product."""

from __future__ import annotations

from gemmule.core.dtype import FLOAT64
from gemmule.core.launch import Launch, TensorParam
from gemmule.core.problem import GemmProblem
from gemmule.core.signature import adds_key, every_signature, major_keys, majors_of
from gemmule.core.spec import Signature
from gemmule.kernels.emulation.guard_words import SHORTFALL, word_param
from gemmule.kernels.emulation.launch_spec import emulation_spec, launch_us
from gemmule.kernels.emulation.ozaki_config import THREADS, NativeLinesConfig
from gemmule.kernels.emulation.product_forms import lead
from gemmule.kernels.hopper.tma_tiles import row_params, scale_params
from gemmule.kernels.parts.hopper_facts import SMS


def _signature(problem: GemmProblem, config: NativeLinesConfig) -> Signature:
    del config
    return (*major_keys(*majors_of(problem)), *adds_key(problem.c is not None))


def _launch(problem: GemmProblem, config: NativeLinesConfig) -> Launch:
    """Return the launch recipe: a CTA for each SM, as the host does not know how many lines are listed."""
    del config
    lines = ((name, one) for name, one in (("a", problem.a), ("b", problem.b.transposed())))
    params = (
        *(TensorParam(name, (one.cols, one.rows), (lead(one),)) for name, one in lines),
        *row_params(problem, ()),
        *scale_params(problem),
        TensorParam("rows", (problem.m,), ()),
        word_param(SHORTFALL),
    )
    shared = THREADS // 64 * 32 * 32 * FLOAT64.itemsize + 64
    return Launch(grid=(SMS, 1, 1), block=(THREADS, 1, 1), params=params, shared_bytes=shared, overlaps=True)


# Of ordinary numbers no line is listed: its CTAs return at once.
SPEC = emulation_spec(
    name="float64_lines",
    summary="rows and columns that the guard of precision='ozaki' lists, in float64: mma.sync",
    package=__package__,
    configs=(NativeLinesConfig(),),
    signatures=every_signature(a_major="km", b_major="kn", adds=("no", "yes")),
    signature=_signature,
    launch=_launch,
    batch_dims=0,
    cost=launch_us,
)
