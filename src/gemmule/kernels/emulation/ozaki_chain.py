"""The kernels after the first launch of Ozaki scheme II, by blocks of columns, and what they take together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gemmule.core.dtype import FLOAT8_E5M2, FLOAT32, INT8, opaque_dtype
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import MAP_ALIGNMENT
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import KernelSpec, NextKernel
from gemmule.kernels.emulation.guard_words import SHORTFALL, SHORTFALL_WORDS
from gemmule.kernels.emulation.native_lines.spec import SPEC as NATIVE_LINES
from gemmule.kernels.emulation.ozaki_config import GROUP, LAUNCH_US, SLICE
from gemmule.kernels.emulation.ozaki_gemm.first_launches import PAIRS, SCALES
from gemmule.kernels.emulation.ozaki_guard.spec import SPEC as GUARD
from gemmule.kernels.emulation.ozaki_guard.spec import bound_columns, sampled_length
from gemmule.kernels.emulation.ozaki_products.spec import SPEC as PRODUCTS
from gemmule.kernels.emulation.ozaki_reconstruction.spec import SPEC as RECONSTRUCTION
from gemmule.kernels.emulation.ozaki_residues.spec import SPEC as RESIDUES
from gemmule.kernels.emulation.product_forms import depth_of, most_moduli, native_room, planes_of
from gemmule.kernels.emulation.residues import BLOCK_BYTES, MOST_K
from gemmule.kernels.hopper.next_kernel import choose_next

#: Columns of a block are a multiple of this, for whole tiles and aligned lines.
_BLOCK = 512
#: Most elements of an operand, for the kernels' indices.
_MOST_ELEMENTS = 2**37
#: Share of products that the guard refuses: of ordinary inputs of float64 1 of 29. And of the native time, what must be
#: saved: at 2048 native products took a tenth less than predicted, at the higher clocks of short ones.
_REFUSED, _SAVED = 0.05, 0.1


def _rounded(extent: int, unit: int) -> int:
    return -(-extent // unit) * unit


def emulation(problem: GemmProblem, names: Sequence[str], native: NextKernel | None, gpu: GpuRates) -> NextKernel:
    """Return the kernels after the scales.

    Parameters
    ----------
    problem : GemmProblem
        A product with a row-major result, of real numbers, or a complex result of the parts of A and B (`planes_of`).
    names : sequence of str
        Its operands A and B.
    native : NextKernel or None
        The native kernel for where the guard decides so; None without a guard.
    """
    m, n, length = problem.m, problem.n, _rounded(depth_of(problem), SLICE)
    count = most_moduli(problem) * planes_of(problem)
    most = max(BLOCK_BYTES // (count * (length + m)) // _BLOCK * _BLOCK, _BLOCK)
    block = _rounded(-(-n // -(-n // most)), _BLOCK)
    workspaces = {
        "scales of rows": 4 * _rounded(m, GROUP),
        "scales of columns": 4 * (_rounded(n, GROUP) + GROUP),
        "residues of rows": count * m * length,
        "residues of columns": count * min(block, n) * length,
        "residues of the result": count * m * _rounded(min(block, n), GROUP),
    }
    then: NextKernel | None = None
    # The last block first: each has the next one as its next kernel.
    for begin in reversed(range(0, n, block)):
        then = _block(problem, names, range(begin, min(begin + block, n)), then, gpu)
    assert then is not None
    if native is not None:
        sampled, columns = sampled_length(problem.k), bound_columns(problem)
        room = native_room(problem)
        workspaces |= {SHORTFALL: 4 * (SHORTFALL_WORDS + sum(room))}
        workspaces |= {"magnitudes of rows": m * sampled, "magnitudes of columns": columns * sampled}
        if any(room):
            scales = {"rows": "scales of rows"}
            operands = dict(zip("ab", names, strict=True)) | {name: name for name in "dc" if name in problem.operands()}
            then = NextKernel(NATIVE_LINES, NATIVE_LINES.default, problem, operands | scales, {}, then=then)
        # Before the emulation, whose CTAs return while it runs.
        then = _guard(problem, names, dataclasses.replace(native, then=then), gpu)
    return dataclasses.replace(then, workspaces=workspaces)


def native_kernel(problem: GemmProblem, guarded: KernelSpec, gpu: GpuRates) -> NextKernel:
    """Return the native kernel, which computes all where the guard decided so."""
    spec, config, _ = choose_next(problem, (guarded,), gpu)
    return NextKernel(spec, config, problem, {}, {})


def _guard(problem: GemmProblem, names: Sequence[str], then: NextKernel, gpu: GpuRates) -> NextKernel:
    """Return the launches that measure whether the product is emulated, and `then` after them."""
    m, n, length = problem.m, bound_columns(problem), sampled_length(problem.k)
    a = StridedMatrix(FLOAT8_E5M2, m, length, length, 1, (), MAP_ALIGNMENT)
    b = StridedMatrix(FLOAT8_E5M2, length, n, 1, length, (), MAP_ALIGNMENT)
    d = StridedMatrix(FLOAT32, m, n, n, 1, (), MAP_ALIGNMENT)
    magnitudes = GemmProblem(m, n, length, (), a, b, None, d, precision=problem.precision)
    spec, config, _ = choose_next(magnitudes, (GUARD,), gpu)
    operands = {"a": "magnitudes of rows", "b": "magnitudes of columns"}
    operands |= {"rows": "scales of rows", "columns": "scales of columns"}
    least = NextKernel(spec, config, magnitudes, operands, {}, then=then)
    scales, config, _ = choose_next(problem, (SCALES,), gpu)
    lines = dict(zip("ab", names, strict=True))
    measured = NextKernel(scales, config, problem, lines, {}, then=least)
    return NextKernel(PAIRS, PAIRS.default, problem, lines, {}, then=measured)


def _block(
    problem: GemmProblem, names: Sequence[str], columns: range, then: NextKernel | None, gpu: GpuRates
) -> NextKernel:
    """Return the kernels for some columns, and `then` after them; `problem` and `names` as of `row_result`."""
    n, begin, written = len(columns), columns.start, columns.start * problem.d.dtype.itemsize
    item = problem.b.dtype.itemsize
    matrices = problem.operands()
    for name in matrices.keys() - "a":
        matrices[name] = dataclasses.replace(matrices[name], cols=n, alignment=item)
    part = dataclasses.replace(problem.with_operands((), matrices), n=n)
    of_b = begin * problem.b.col_stride * item
    beyond = {"b": of_b, "d": written, "c": written, "columns": 4 * begin}
    scales = {"rows": "scales of rows", "columns": "scales of columns"}
    operands = scales | {"residues": "residues of the result"} | {name: name for name in "dc" if name in matrices}
    last = NextKernel(RECONSTRUCTION, RECONSTRUCTION.default, part, operands, {}, beyond=beyond, then=then)
    # The last part of K first: each has the next one as its next kernel.
    for start in reversed(range(0, _rounded(depth_of(problem), SLICE), MOST_K)):
        last = _products(problem, n, start, last, gpu)
    # The residues of A are those of the first block.
    a = problem.a if begin == 0 else dataclasses.replace(problem.a, rows=0)
    converted = dataclasses.replace(part, m=a.rows, a=a)
    operands = dict(zip("ab", names, strict=True)) | scales
    return NextKernel(RESIDUES, RESIDUES.default, converted, operands, {}, beyond=beyond, then=last)


def _products(problem: GemmProblem, n: int, start: int, then: NextKernel, gpu: GpuRates) -> NextKernel:
    """Return the products of a part of K for `n` columns, added to those before it, and `then` after them."""
    length, count = _rounded(depth_of(problem), SLICE), most_moduli(problem) * planes_of(problem)
    m, width, k = problem.m, _rounded(n, GROUP), min(length - start, MOST_K)
    a = StridedMatrix(INT8, m, k, length, 1, (m * length,), MAP_ALIGNMENT)
    b = StridedMatrix(INT8, k, n, 1, length, (n * length,), MAP_ALIGNMENT)
    d = StridedMatrix(opaque_dtype(1), m, width, width, 1, (m * width,), MAP_ALIGNMENT)
    part = GemmProblem(m, width, k, (count,), a, b, d if start else None, d, precision=problem.precision)
    operands = {"a": "residues of rows", "b": "residues of columns", "d": "residues of the result"}
    spec, config, _ = choose_next(part, (PRODUCTS,), gpu)
    return NextKernel(spec, config, part, operands, {}, beyond={"a": start, "b": start}, then=then)


def why_not_elements(problem: GemmProblem) -> str | None:
    """Return which operand has too many elements for indices, or None."""
    for name, matrix in problem.operands().items():
        if matrix.rows * matrix.cols > _MOST_ELEMENTS:
            return f"{name.upper()} has {matrix.rows} x {matrix.cols} elements, of at most {_MOST_ELEMENTS}"
    return None


def emulation_us(after: NextKernel, gpu: GpuRates) -> tuple[float, float]:
    """Return `times_us` of the kernels after the first."""
    emulated = refused = 0.0
    skipped, is_decided, is_native = gpu.launch * LAUNCH_US, False, False
    for one in after.chain():
        assert one.spec.cost is not None
        us = one.spec.cost(one.problem, one.config, gpu)
        # CTAs of launches that the guard makes needless return at once.
        emulated += skipped if is_native else us
        refused += skipped if is_decided and not is_native else us
        # The native kernel is the first behind the guard.
        is_native = one.spec is GUARD
        is_decided = is_decided or is_native
    return emulated, refused


def pays(emulated: float, refused: float, plain: float) -> bool:
    """Return whether emulation is expected to save time, by the microseconds of `times_us` and of the native kernel."""
    return emulated + _REFUSED * (refused - emulated) <= (1 - _SAVED) * plain
