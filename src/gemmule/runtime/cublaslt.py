"""cuBLASLt as the baseline: its top heuristic and the ones that follow, called by pointer.

It is reached through the low-level bindings of nvmath-python, which need no array library.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import BFLOAT16, FLOAT32, Precision
from gemmule.core.errors import UnsupportedError
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem

from .device import current
from .memory import DeviceBuffer
from .rotation import ALIGNMENT, OperandSets, Rotation, lead_of

#: Workspace that cuBLASLt may use; NVIDIA recommends 32 MiB for Hopper.
WORKSPACE_BYTES = 32 << 20
#: Algorithms requested from the heuristic.
ALGORITHMS = 8

# Names of cudaDataType_t.
_CUDA_TYPES = {
    "float64": "CUDA_R_64F",
    "float32": "CUDA_R_32F",
    "float16": "CUDA_R_16F",
    "bfloat16": "CUDA_R_16BF",
    "float8_e4m3fn": "CUDA_R_8F_E4M3",
    "float8_e5m2": "CUDA_R_8F_E5M2",
    "int8": "CUDA_R_8I",
    "int32": "CUDA_R_32I",
    "complex64": "CUDA_C_32F",
    "complex128": "CUDA_C_64F",
}
# Sums in float32 of float32 inputs are FFMA, but for TF32.
_COMPUTE = {"float64": "COMPUTE_64F", "float32": "COMPUTE_32F", "int32": "COMPUTE_32I"}
_TF32 = "COMPUTE_32F_FAST_TF32"
#: Types of results that cuBLASLt documents, by those of A and B; its heuristic names algorithms for others too.
_RESULTS = {
    "float64": ("float64",),
    "float32": ("float32",),
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "int8": ("int8", "int32"),
    "complex64": ("complex64",),
    "complex128": ("complex128",),
}


@dataclass(frozen=True)
class Algorithm:
    """One of cuBLASLt's algorithms for a product."""

    work: Callable[[], None]  #: Queues the product on the next buffer set.
    #: Its number and configuration, as cuBLASLt names them, its workspace in bytes and the waves that it fills.
    description: dict[str, Any]


class CublasLt:
    """cuBLASLt on one GPU and stream.

    Parameters
    ----------
    ordinal : int
        The GPU; its context is current.
    stream : int
        The driver's handle of the stream.

    Raises
    ------
    UnsupportedError
        If nvmath-python or cuBLASLt is not installed.
    """

    def __init__(self, ordinal: int, stream: int) -> None:
        self._ordinal, self._stream = ordinal, stream
        self._blas, self._lt, self._types = _bindings()
        try:
            self.version = _version(self._lt.get_version())
            self._handle = self._lt.create()
        except (RuntimeError, self._lt.cuBLASLtError) as error:
            raise UnsupportedError(
                f"the baseline cuBLASLt does not start: {_short(error)}; pip install 'gemmule[bench]' brings it, "
                "--no-baseline measures without it"
            ) from error
        self._workspace = DeviceBuffer(WORKSPACE_BYTES, ordinal, stream)

    def close(self) -> None:
        """Give the library's handle and the workspace back."""
        self._lt.destroy(self._handle)
        self._workspace.free()

    @contextlib.contextmanager
    def algorithms(self, problem: GemmProblem, operands: OperandSets) -> Iterator[list[Algorithm]]:
        """Give up to eight algorithms for a product, the top heuristic first.

        Raises
        ------
        UnsupportedError
            If cuBLASLt does not support the product, with its reason.
        """
        with current(self._ordinal), contextlib.ExitStack() as stack:
            matmul = self._described(problem, stack)
            found = self._heuristic(problem, matmul, stack)
            yield [Algorithm(self._work(matmul, operands, one), self._description(one)) for one in found]

    def _described(self, problem: GemmProblem, stack: contextlib.ExitStack) -> _Matmul:
        """Describe a row-major product to a library that thinks in columns: D^T = B^T A^T."""
        lt, operation = self._lt, self._blas.Operation
        types, scale = self._scale_type(problem)
        tf32 = problem.precision is Precision.TF32 and problem.a.dtype is problem.b.dtype is FLOAT32
        compute = _TF32 if tf32 else _COMPUTE[problem.accumulator.part.name]
        descriptor = lt.matmul_desc_create(self._blas.ComputeType[compute], types)
        stack.callback(lt.matmul_desc_destroy, descriptor)
        layouts: list[int] = []
        for attribute, matrix in (
            (lt.MatmulDescAttribute.TRANSA, problem.b),
            (lt.MatmulDescAttribute.TRANSB, problem.a),
        ):
            # A row-major (r, c) is a column-major (c, r): the transpose that is wanted, unless it lay in columns.
            in_rows = matrix.is_row_major
            if matrix.conj and in_rows:
                raise UnsupportedError("cuBLASLt, the baseline, conjugates only what it transposes")
            transposed = operation.C if matrix.conj else operation.T
            self._set_desc(descriptor, attribute, operation.N if in_rows else transposed)
            layouts.append(self._layout(matrix if in_rows else matrix.transposed(), problem.batch, stack))
        d = problem.d
        if not d.is_row_major:
            raise UnsupportedError("the baseline, as it is called here, writes only row-major D")
        out = self._layout(d, problem.batch, stack)
        # An 8-bit float output has C in 16 bits, even where none is read.
        added = problem.c or dataclasses.replace(d, dtype=BFLOAT16)
        same = problem.c is None and not d.dtype.is_float8
        scalars = np.array([problem.alpha, problem.beta if problem.c is not None else 0], scale)
        return _Matmul(
            descriptor, layouts[0], layouts[1], out if same else self._layout(added, problem.batch, stack), out, scalars
        )

    def _scale_type(self, problem: GemmProblem) -> tuple[int, np.dtype[Any]]:
        """Return the type of alpha and beta, for cuBLASLt and for NumPy."""
        for name, matrix in problem.operands().items():
            if matrix.dtype.name not in _CUDA_TYPES:
                raise UnsupportedError(f"cuBLASLt has no type for {name} of {matrix.dtype}")
        a, d = problem.a.dtype.name, problem.d.dtype.name
        if d not in _RESULTS.get(a, (d,)):
            raise UnsupportedError(f"cuBLASLt documents no product of {a} into {d}")
        if len(problem.batch) > 1:
            raise UnsupportedError("the baseline takes one batch dimension")
        # TF32 is held against TF32, bf16x6 against float32, ozaki-15 against float64. Sums of 8-bit floats are promoted
        # here too, whatever was asked for.
        accumulator = problem.accumulator
        if accumulator.name == "int32" and problem.d.dtype.name == "int8":
            return self._type("float32"), np.dtype(np.float32)
        return self._type(accumulator.name), accumulator.numpy()

    def _type(self, name: str) -> int:
        return int(self._types[_CUDA_TYPES[name]])

    def _layout(self, matrix: StridedMatrix, batch: tuple[int, ...], stack: contextlib.ExitStack) -> int:
        # Rows and columns as cuBLASLt counts them, those of the transpose.
        stride = max(matrix.row_stride, matrix.cols, 1)
        layout = self._lt.matrix_layout_create(self._type(matrix.dtype.name), matrix.cols, matrix.rows, stride)
        stack.callback(self._lt.matrix_layout_destroy, layout)
        attribute = self._lt.MatrixLayoutAttribute
        described = (
            {attribute.BATCH_COUNT: batch[0], attribute.STRIDED_BATCH_OFFSET: matrix.batch_strides[0]} if batch else {}
        )
        for key, value in described.items():
            cell = np.array(value, self._lt.get_matrix_layout_attribute_dtype(key))
            self._lt.matrix_layout_set_attribute(layout, key, cell.ctypes.data, cell.nbytes)
        return int(layout)

    def _set_desc(self, descriptor: int, attribute: Any, value: int) -> None:
        cell = np.array(value, self._lt.get_matmul_desc_attribute_dtype(attribute))
        self._lt.matmul_desc_set_attribute(descriptor, attribute, cell.ctypes.data, cell.nbytes)

    def _heuristic(self, problem: GemmProblem, matmul: _Matmul, stack: contextlib.ExitStack) -> list[_Found]:
        """Ask for algorithms, best guess first."""
        lt = self._lt
        preference = lt.matmul_preference_create()
        stack.callback(lt.matmul_preference_destroy, preference)
        attribute = lt.MatmulPreferenceAttribute
        alignments = [attribute[f"MIN_ALIGNMENT_{name}_BYTES"] for name in "ABCD"]
        least = min(lead_of(matrix) or ALIGNMENT for matrix in problem.operands().values())
        for key, value in ((attribute.MAX_WORKSPACE_BYTES, WORKSPACE_BYTES), *((key, least) for key in alignments)):
            cell = np.array(value, lt.get_matmul_preference_attribute_dtype(key))
            lt.matmul_preference_set_attribute(preference, key, cell.ctypes.data, cell.nbytes)
        results: np.ndarray[Any, np.dtype[Any]] = np.zeros(ALGORITHMS, lt.matmul_heuristic_result_dtype)
        count = np.zeros(1, np.int32)
        try:
            lt.matmul_algo_get_heuristic(
                self._handle, matmul.descriptor, matmul.a, matmul.b, matmul.c, matmul.d, preference, ALGORITHMS,
                results.ctypes.data, count.ctypes.data,
            )  # fmt: skip
        except lt.cuBLASLtError as error:
            raise UnsupportedError(f"cuBLASLt does not take {_named(problem)}: {_short(error)}") from error
        found = [
            _Found(results["algo"][index : index + 1].copy(), int(one["workspace_size"]), float(one["waves_count"]))
            for index, one in enumerate(results[: int(count[0])])
            if one["state"] == 0
        ]
        if not found:
            raise UnsupportedError(f"cuBLASLt has no algorithm for {_named(problem)}")
        return found

    def _work(self, matmul: _Matmul, operands: OperandSets, found: _Found) -> Rotation:
        lt, stream, algorithm = self._lt, self._stream, found.algorithm.ctypes.data
        alpha = matmul.scalars.ctypes.data
        beta = alpha + matmul.scalars.itemsize

        def on(addresses: dict[str, int]) -> Callable[[], None]:
            a, b, c, d = addresses["a"], addresses["b"], addresses.get("c", 0), addresses["d"]

            def queue() -> None:
                try:
                    lt.matmul(
                        self._handle, matmul.descriptor, alpha, b, matmul.a, a, matmul.b, beta, c, matmul.c, d,
                        matmul.d, algorithm, self._workspace.address, WORKSPACE_BYTES, stream,
                    )  # fmt: skip
                except lt.cuBLASLtError as error:
                    raise UnsupportedError(f"cuBLASLt does not run its own algorithm: {_short(error)}") from error

            return queue

        # The scalars and the algorithm are read by address at every call.
        return Rotation([on(operands.addresses(number)) for number in range(operands.sets)], keep=(matmul, found))

    def _description(self, found: _Found) -> dict[str, Any]:
        lt = self._lt
        names = {"TILE_ID": lt.MatmulTile, "STAGES_ID": lt.MatmulStages, "CLUSTER_SHAPE_ID": lt.ClusterShape}
        description: dict[str, Any] = {}
        written = np.zeros(1, np.uint64)
        for key in lt.MatmulAlgoConfigAttribute:
            cell = np.zeros(1, lt.get_matmul_algo_config_attribute_dtype(key))
            try:
                lt.matmul_algo_config_get_attribute(
                    found.algorithm.ctypes.data, key, cell.ctypes.data, cell.nbytes, written.ctypes.data
                )
            except lt.cuBLASLtError:
                # Not every algorithm has every attribute.
                continue
            value = int(cell[0])
            known = {member.value: member.name.lower() for member in names.get(key.name, ())}
            description[key.name.lower().removesuffix("_id")] = known.get(value, value)
        if math.isfinite(found.waves):
            description["waves"] = round(found.waves, 3)
        return description | {"workspace_bytes": found.workspace_bytes}


@dataclass(frozen=True)
class _Matmul:
    """cuBLASLt's description of a product: its A is our B."""

    descriptor: int
    a: int
    b: int
    c: int
    d: int
    scalars: np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class _Found:
    """An algorithm that the heuristic found."""

    algorithm: np.ndarray[Any, np.dtype[Any]]
    workspace_bytes: int
    waves: float


def _bindings() -> tuple[Any, Any, Any]:
    try:
        import nvmath
        from nvmath.bindings import cublas, cublasLt
    except ImportError as error:
        raise UnsupportedError(
            f"the baseline is cuBLASLt through nvmath-python, which is not installed ({error}); "
            "pip install 'gemmule[bench]', or measure without it: --no-baseline"
        ) from error
    return cublas, cublasLt, nvmath.CudaDataType


def _version(number: int) -> str:
    """Return a version that cuBLASLt writes as 130100 in words: 13.1.0."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _short(error: Exception) -> str:
    """Return the text of an error of the bindings, without its advice on logging."""
    return str(error).partition(" You can set")[0].rstrip(".")


def _named(problem: GemmProblem) -> str:
    a, b, d = problem.a.dtype, problem.b.dtype, problem.d.dtype
    return f"{a} x {b} -> {d}, {problem.layout}, {problem.m} x {problem.n} x {problem.k}"
