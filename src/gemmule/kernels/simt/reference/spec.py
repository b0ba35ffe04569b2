"""Spec of the GEMM that takes every problem."""

from __future__ import annotations

from gemmule.core.arch import Arch
from gemmule.core.dtype import (
    BFLOAT16,
    COMPLEX64,
    COMPLEX128,
    DTYPES,
    FLOAT8_E4M3,
    FLOAT8_E5M2,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    MAX_INT8_K,
    DType,
    Kind,
    accumulator,
)
from gemmule.core.epilogue import ABSMAX, SECOND
from gemmule.core.epilogue_inputs import absmax_params
from gemmule.core.launch import Launch, Param, TensorParam, number_params, scalar_params
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.parts.conjugates import conj_key, why_not_conjugates

from .config import ReferenceConfig
from .cost import cost

#: Types of the result for each accumulator.
OUTPUTS = {
    FLOAT64: (FLOAT64, FLOAT32),
    FLOAT32: (FLOAT32, FLOAT64, FLOAT16, BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2),
    INT32: (INT32, INT8),
    COMPLEX128: (COMPLEX128, COMPLEX64),
    COMPLEX64: (COMPLEX64, COMPLEX128),
}
#: Further types of the results of int8, whose sums wrap beyond a K.
_FLOATS_OF_INT8 = (FLOAT32, FLOAT16, BFLOAT16)
_MAX_GRID = 2**31 - 1


def why_not(problem: GemmProblem, arch: Arch, config: ReferenceConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del config
    dtypes = [x.dtype for x in (problem.a, problem.b, problem.c, problem.d) if x is not None]
    for dtype in (problem.a.dtype, problem.b.dtype):
        if dtype not in DTYPES:
            return f"inputs of {dtype} are not supported; choose among {', '.join(map(str, DTYPES))}"
    outputs = OUTPUTS[problem.accumulator]
    if problem.a.dtype == problem.b.dtype == INT8:
        outputs += _FLOATS_OF_INT8
    if problem.d.dtype not in outputs:
        if problem.accumulator == INT32:
            factors = " x ".join(dict.fromkeys((problem.a.dtype.name, problem.b.dtype.name)))
            *names, last = map(str, outputs)
            written = f"{factors} products are written on a GPU as {', '.join(names)} or {last}"
            return f"{written}, not {problem.d.dtype}; convert the int32 result"
        return (
            f"{problem.a.dtype} x {problem.b.dtype} accumulates in {problem.accumulator}, which the output cannot hold "
            f"as {problem.d.dtype}; choose among {', '.join(map(str, outputs))}"
        )
    if problem.scale_type != problem.accumulator and problem.k > MAX_INT8_K:
        return (
            f"a float result of int8 needs K of at most {MAX_INT8_K} on a GPU; got K={problem.k}: split K and add, or "
            "take int32, modulo 2^32"
        )
    sums = problem.accumulator, problem.scale_type
    if problem.c is not None and not any(one.holds(problem.c.dtype) for one in sums):
        return f"C is {problem.c.dtype}, which {problem.accumulator}, the type of the accumulators, does not hold"
    if problem.epilogue is not None:
        if problem.scale_type.kind is not Kind.FLOAT:
            types = f"{problem.a.dtype} x {problem.b.dtype} accumulates in {problem.accumulator}"
            return f"epilogues are computed in real floats; {types}"
        dtypes += [matrix.dtype for matrix in problem.epilogue.matrices]
    if reason := why_not_conjugates(problem, "abc"):
        return reason
    dtypes.remove(problem.d.dtype)
    return arch.why_not_float8(dtypes, problem.d.dtype)


def signature(problem: GemmProblem, config: ReferenceConfig) -> Signature:
    """Specialise for the element types; without C, its slot takes the output's type."""
    del config
    c = problem.c if problem.c is not None else problem.d
    plain = _signature(problem.a.dtype, problem.b.dtype, c.dtype, problem.d.dtype)
    if problem.accumulator.kind is Kind.COMPLEX:
        return (*plain, ("conj", conj_key(problem)))
    if problem.epilogue is None:
        return plain
    inputs = " ".join(matrix.dtype.name for matrix in problem.epilogue.matrices)
    absmax = ((ABSMAX, "yes"),) if problem.epilogue.absmax else ()
    return (*plain, ("epilogue", problem.epilogue.expression.text), ("inputs", inputs), *absmax)


def _signature(a: DType, b: DType, c: DType, d: DType) -> Signature:
    return (("a", a.name), ("b", b.name), ("c", c.name), ("d", d.name), ("acc", accumulator(a, b).name))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return, for every input type, the outputs of its own type and of its accumulator's."""
    inputs = [x for x in DTYPES if not x.is_float8 or arch.has_float8]
    real = tuple(_signature(x, x, d, d) for x in inputs for d in dict.fromkeys((x, accumulator(x, x))))
    return tuple((*one, ("conj", "no")) if "complex" in one[0][1] else one for one in real)


def launch(problem: GemmProblem, config: ReferenceConfig) -> Launch:
    """Return the launch recipe: one CTA for each tile of C, up to the grid's limit."""
    m, n, k = problem.m, problem.n, problem.k
    batch = problem.batch + (1,) * (SPEC.batch_dims - len(problem.batch))

    def strides(x: StridedMatrix) -> tuple[int, ...]:
        found = (x.row_stride, x.col_stride, *x.batch_strides, *(0,) * (SPEC.batch_dims - len(x.batch_strides)))
        # Complex matrices have a mode of two parts, and strides of these.
        return found if x.dtype.kind is not Kind.COMPLEX else tuple(2 * stride for stride in found)

    acc, scale = problem.accumulator, problem.scale_type
    tiles = -(-m // config.tile_m) * -(-n // config.tile_n) * batch[0] * batch[1]
    c = problem.c if problem.c is not None else problem.d
    extras: list[Param] = []
    num_b = 1
    if problem.epilogue is not None:
        for name, matrix in problem.epilogue.inputs().items():
            extras.append(TensorParam(name, (m, n, *batch), strides(matrix), shape_bits=64))
        extras += (*number_params(problem.epilogue, scale), *absmax_params(problem.epilogue))
        if (second := problem.epilogue.second) is not None:
            num_b = 2
            extras.append(TensorParam(SECOND, (n, k, *batch), strides(second.transposed()), shape_bits=64))
    return Launch(
        grid=(min(tiles, _MAX_GRID), 1, 1),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes(acc.itemsize, num_b),
        params=(
            TensorParam("a", (m, k, *batch), strides(problem.a), shape_bits=64),
            # B is (K, N) in the API, and (N, K) in CuTe.
            TensorParam("b", (n, k, *batch), strides(problem.b.transposed()), shape_bits=64),
            TensorParam("d" if problem.c is None else "c", (m, n, *batch), strides(c), shape_bits=64),
            TensorParam("d", (m, n, *batch), strides(problem.d), shape_bits=64),
            *scalar_params(scale, problem.alpha, problem.beta if problem.c is not None else 0),
            *extras,
        ),
    )


SPEC = KernelSpec(
    name="gemm_reference",
    operation="gemm",
    summary="every type, any strides, alignment, shape and batch: 64 x 64 tiles in shared memory, predicated",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(ReferenceConfig(),),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    cost=cost,
    cost_in_us=True,
    batch_dims=2,
    epilogues=True,
    gated=True,
    absmax=True,
)
