"""What cuBLASLt is told of a product: by stand-in bindings that compute, in columns, what they were told."""

from __future__ import annotations

import ctypes
import enum
import sys
import types

import numpy as np
import pytest

from gemmule.core.dtype import Precision, dtype_named
from gemmule.core.errors import UnsupportedError
from gemmule.core.problem import GemmProblem
from gemmule.lab.products import LAYOUTS, as_matrix, gemm_problem, random_inputs
from gemmule.runtime.cublaslt import ALGORITHMS, WORKSPACE_BYTES, CublasLt
from support.fakes.cuda import FakeCuda, Result, installed
from support.fakes.modules import replaced

TYPES = enum.IntEnum(
    "CudaDataType",
    {"CUDA_R_32F": 0, "CUDA_R_64F": 1, "CUDA_R_16F": 2, "CUDA_R_8I": 3, "CUDA_R_32I": 10, "CUDA_R_16BF": 14,
     "CUDA_R_8F_E4M3": 28, "CUDA_R_8F_E5M2": 29},
)  # fmt: skip
NUMPY = {0: "f4", 1: "f8", 2: "f2", 3: "i1", 10: "i4"}
BLAS = types.SimpleNamespace(
    Operation=enum.IntEnum("Operation", {"N": 0, "T": 1}),
    ComputeType=enum.IntEnum("ComputeType", {"COMPUTE_32F": 68, "COMPUTE_64F": 70, "COMPUTE_32I": 72}),
)


def at(address, dtype, count):
    itemsize = np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * (count * itemsize)).from_address(address), dtype)


class Bindings:
    """The functions of nvmath.bindings.cublasLt that are used, with the signatures that they have there."""

    class cuBLASLtError(Exception):
        pass

    MatrixLayoutAttribute = enum.IntEnum("MatrixLayoutAttribute", {"BATCH_COUNT": 5, "STRIDED_BATCH_OFFSET": 6})
    MatmulDescAttribute = enum.IntEnum("MatmulDescAttribute", {"TRANSA": 3, "TRANSB": 4})
    MatmulPreferenceAttribute = enum.IntEnum(
        "MatmulPreferenceAttribute", {"MAX_WORKSPACE_BYTES": 1, **{f"MIN_ALIGNMENT_{x}_BYTES": 5 + i for i, x in
                                                                   enumerate("ABCD")}},
    )  # fmt: skip
    MatmulAlgoConfigAttribute = enum.IntEnum(
        "MatmulAlgoConfigAttribute", {"ID": 0, "TILE_ID": 1, "SPLITK_NUM": 2, "CLUSTER_SHAPE_ID": 8}
    )
    MatmulTile = enum.IntEnum("MatmulTile", {"TILE_128x128": 20})
    MatmulStages = enum.IntEnum("MatmulStages", {"STAGES_32x4": 10})
    ClusterShape = enum.IntEnum("ClusterShape", {"SHAPE_AUTO": 0})
    matmul_heuristic_result_dtype = np.dtype(
        [("algo", [("data_", "<u8", (8,))]), ("workspace_size", "<u8"), ("state", "<i4"), ("waves_count", "<f4"),
         ("reserved", "<i4", (4,))]
    )  # fmt: skip

    def __init__(self):
        self.objects, self.launched, self.refuse = {}, [], None

    def _new(self, **fields):
        handle = len(self.objects) + 1
        self.objects[handle] = types.SimpleNamespace(**fields)
        return handle

    def _gone(self, handle):
        self.objects[handle].closed = True

    def get_version(self):
        return 130100

    def create(self):
        return self._new(kind="library")

    def matmul_desc_create(self, compute_type, scale_type):
        return self._new(kind="product", compute=int(compute_type), scale=int(scale_type), set={})

    def matrix_layout_create(self, kind, rows, cols, ld):
        return self._new(kind="layout", type=kind, rows=rows, cols=cols, ld=ld, BATCH_COUNT=1, STRIDED_BATCH_OFFSET=0)

    def get_matrix_layout_attribute_dtype(self, key):
        return {5: np.int32, 6: np.int64}[int(key)]

    def matrix_layout_set_attribute(self, handle, key, buffer, size):
        setattr(self.objects[handle], key.name, int(at(buffer, f"i{size}", 1)[0]))

    def matmul_preference_create(self):
        return self._new(kind="preference", set={})

    destroy = matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = _gone

    def get_matmul_desc_attribute_dtype(self, key):
        return np.int32

    def get_matmul_preference_attribute_dtype(self, key):
        return np.uint64 if key == 1 else np.uint32

    def get_matmul_algo_config_attribute_dtype(self, key):
        return {0: np.int32, 8: np.uint16}.get(int(key), np.uint32)

    def matmul_desc_set_attribute(self, handle, key, buffer, size):
        assert size == 4
        self.objects[handle].set[key.name] = int(at(buffer, np.int32, 1)[0])

    def matmul_preference_set_attribute(self, handle, key, buffer, size):
        self.objects[handle].set[key.name] = int(at(buffer, f"u{size}", 1)[0])

    def matmul_algo_get_heuristic(self, library, product, a, b, c, d, preference, wanted, results, count):
        if self.refuse:
            raise self.cuBLASLtError(self.refuse)
        assert wanted == ALGORITHMS
        asked = self.objects[preference].set
        assert asked == {"MAX_WORKSPACE_BYTES": WORKSPACE_BYTES, **{f"MIN_ALIGNMENT_{x}_BYTES": 256 for x in "ABCD"}}
        found = at(results, self.matmul_heuristic_result_dtype, wanted)
        found["algo"]["data_"][:3, 0] = [100, 101, 102]
        found["workspace_size"][:3] = [0, 10, 20]
        found["state"][1] = 15  # NOT_SUPPORTED
        found["waves_count"][:3] = 0.5
        at(count, np.int32, 1)[0] = 3

    def matmul_algo_config_get_attribute(self, algo, key, buffer, size, written):
        if key == 8:
            raise self.cuBLASLtError("has no clusters")
        number = int(at(algo, np.uint64, 1)[0])
        at(buffer, f"u{size}", 1)[0] = {0: number, 1: 20}.get(int(key), 1)

    def matmul(self, library, product, alpha, a, a_desc, b, b_desc, beta, c, c_desc, d, d_desc, algo, workspace, size,
               stream):  # fmt: skip
        def matrix(address, handle):
            layout = self.objects[handle]
            count, apart = layout.BATCH_COUNT, layout.STRIDED_BATCH_OFFSET
            values = at(address, NUMPY[layout.type], (count - 1) * apart + layout.ld * layout.cols)
            strides = (apart * values.itemsize, values.itemsize, layout.ld * values.itemsize)
            return np.lib.stride_tricks.as_strided(values, (count, layout.rows, layout.cols), strides)

        told = self.objects[product]
        left, right, out = matrix(a, a_desc), matrix(b, b_desc), matrix(d, d_desc)
        left = left.swapaxes(1, 2) if told.set["TRANSA"] else left
        right = right.swapaxes(1, 2) if told.set["TRANSB"] else right
        scalars = [at(x, NUMPY[told.scale], 1)[0] for x in (alpha, beta)]
        value = scalars[0] * (left.astype(out.dtype) @ right.astype(out.dtype))
        if scalars[1]:
            value = value + scalars[1] * matrix(c, c_desc)
        out[...] = value
        self.launched.append((int(at(algo, np.uint64, 1)[0]), c, workspace, size, stream))


class HostOperands:
    """Operands in host memory, at the addresses that a product is told of."""

    def __init__(self, problem, inputs, sets):
        self.sets = sets
        self.outputs = [np.zeros((*problem.batch, problem.m, problem.n), problem.d.dtype.numpy()) for _ in range(sets)]
        self.inputs = inputs

    def addresses(self, index):
        inputs = {name: array.ctypes.data for name, array in self.inputs.items()}
        return inputs | {"d": self.outputs[index].ctypes.data}


class Workspace(FakeCuda):
    def cuMemAllocAsync(self, nbytes, stream):
        return Result.CUDA_SUCCESS, 4096

    def cuMemFreeAsync(self, address, stream):
        return (Result.CUDA_SUCCESS,)


def installed_nvmath(bindings):
    """Let nvmath-python be a stand-in while a block runs; None for one that is not installed."""
    modules = {"nvmath": None, "nvmath.bindings": None}
    if bindings is not None:
        modules["nvmath"] = types.SimpleNamespace(CudaDataType=TYPES)
        modules["nvmath.bindings"] = types.SimpleNamespace(cublas=BLAS, cublasLt=bindings)
    return replaced(modules)


@pytest.fixture
def bindings():
    with installed_nvmath(Bindings()), installed(Workspace()):
        yield sys.modules["nvmath.bindings"].cublasLt


def multiply(bindings, problem, inputs, sets=2, algorithm=0):
    library = CublasLt(0, 77)
    operands = HostOperands(problem, inputs, sets)
    with library.algorithms(problem, operands) as algorithms:
        for _ in range(sets):
            algorithms[algorithm].work()
        descriptions = [one.description for one in algorithms]
    library.close()
    assert all(one.closed for one in bindings.objects.values())
    return operands.outputs, descriptions


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 4, 6), (4, 1, 6), (4, 6, 1), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "out"), [("float64", "float64"), ("float32", "float32"), ("int8", "int32")])
def test_the_product_that_it_is_told_of_is_the_one_that_is_wanted(bindings, dtype, out, layout, shape):
    problem = gemm_problem(*shape, dtype, out, layout)
    inputs = random_inputs(problem, 0)
    a, b = (as_matrix(inputs[name], getattr(problem, name)).astype(out) for name in "ab")
    outputs, _ = multiply(bindings, problem, inputs)
    for output in outputs:
        np.testing.assert_allclose(output, a @ b, rtol=1e-5)
    # No C, the workspace, the stream; the same algorithm on every set.
    assert bindings.launched == [(100, 0, 4096, WORKSPACE_BYTES, 77)] * 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_is_described_by_its_count_and_its_strides(bindings, layout):
    problem = gemm_problem(3, 5, 7, "float64", "float64", layout, batch=(4,))
    inputs = random_inputs(problem, 0)
    a, b = (as_matrix(inputs[name], getattr(problem, name)) for name in "ab")
    (output,), _ = multiply(bindings, problem, inputs, sets=1)
    np.testing.assert_allclose(output, a @ b)


def test_scalars_and_c(bindings):
    plain = gemm_problem(3, 5, 7, "float64", "float64", "nt")
    problem = GemmProblem(3, 5, 7, (), plain.a, plain.b, plain.d, plain.d, 0.5, -2.0)
    rng = np.random.default_rng(0)
    inputs = {"a": rng.standard_normal((3, 7)), "b": rng.standard_normal((5, 7)), "c": rng.standard_normal((3, 5))}
    (output,), _ = multiply(bindings, problem, inputs, sets=1)
    np.testing.assert_allclose(output, 0.5 * inputs["a"] @ inputs["b"].T - 2 * inputs["c"])


def test_algorithms_that_work_are_described_the_first_choice_first(bindings):
    problem = gemm_problem(3, 5, 7, "float32", "float32", "nn")
    _, descriptions = multiply(bindings, problem, random_inputs(problem, 0), algorithm=1)
    assert descriptions[0] == {"id": 100, "tile": "tile_128x128", "splitk_num": 1, "workspace_bytes": 0, "waves": 0.5}
    assert [one["id"] for one in descriptions] == [100, 102]  # the second does not work here
    assert bindings.launched[0][0] == 102


@pytest.mark.parametrize(
    ("dtype", "out", "compute", "scale", "c_type"),
    [
        ("float64", "float64", "COMPUTE_64F", "CUDA_R_64F", "CUDA_R_64F"),
        ("float32", "float32", "COMPUTE_32F", "CUDA_R_32F", "CUDA_R_32F"),
        ("bfloat16", "bfloat16", "COMPUTE_32F", "CUDA_R_32F", "CUDA_R_16BF"),
        ("float16", "float32", "COMPUTE_32F", "CUDA_R_32F", "CUDA_R_32F"),
        ("float8_e4m3fn", "float8_e4m3fn", "COMPUTE_32F", "CUDA_R_32F", "CUDA_R_16BF"),
        ("int8", "int32", "COMPUTE_32I", "CUDA_R_32I", "CUDA_R_32I"),
        ("int8", "int8", "COMPUTE_32I", "CUDA_R_32F", "CUDA_R_8I"),
    ],
)
def test_types(bindings, dtype, out, compute, scale, c_type):
    problem = gemm_problem(16, 16, 16, dtype, out, "nt")
    seen = []
    bindings.matmul_algo_get_heuristic = lambda *arguments: seen.append(arguments)
    with (
        pytest.raises(UnsupportedError, match="has no algorithm"),
        CublasLt(0, 0).algorithms(problem, HostOperands(problem, random_inputs(problem, 0), 1)),
    ):
        pass
    _, product, a, b, c, d, *_ = seen[0]
    objects = bindings.objects
    assert (objects[product].compute, objects[product].scale) == (BLAS.ComputeType[compute], TYPES[scale])
    kinds = [objects[handle].type for handle in (a, b, c, d)]
    wanted = {"float8_e4m3fn": "CUDA_R_8F_E4M3", "bfloat16": "CUDA_R_16BF"}.get(dtype)
    assert kinds[0] == kinds[1] == (TYPES[wanted] if wanted else kinds[0])
    assert kinds[2] == TYPES[c_type]
    # 8-bit floats are taken with the transposed first factor only: what A in rows and B in columns are to it.
    assert objects[product].set == {"TRANSA": 1, "TRANSB": 0}


def test_what_it_does_not_take_is_told_without_advice_on_logging(bindings):
    problem = gemm_problem(3, 5, 7, "float8_e5m2", "float32", "nn")
    operands = HostOperands(problem, random_inputs(problem, 0), 1)
    bindings.refuse = "an unsupported value (CUBLAS_STATUS_NOT_SUPPORTED). You can set CUBLASLT_LOG_LEVEL=5"
    with pytest.raises(UnsupportedError) as refused, CublasLt(0, 0).algorithms(problem, operands):
        pass
    assert str(refused.value) == (
        "cuBLASLt does not take float8_e5m2 x float8_e5m2 -> float32, nn, 3 x 5 x 7: an unsupported value "
        "(CUBLAS_STATUS_NOT_SUPPORTED)"
    )
    for changed in (
        {"precision": Precision.TF32}, {"batch": (2, 2)}, {"d": problem.d.transposed()},
        {"a": gemm_problem(3, 5, 7, "float64", "float64", "nn").a},
    ):  # fmt: skip
        other = GemmProblem(**{name: getattr(problem, name) for name in problem.__dataclass_fields__} | changed)
        with pytest.raises(UnsupportedError), CublasLt(0, 0).algorithms(other, operands):
            pass
    assert dtype_named("float8_e5m2") is problem.a.dtype


@pytest.mark.parametrize(
    "types", [("float32", "bfloat16"), ("float16", "bfloat16"), ("int8", "float16")], ids=" to ".join
)
def test_no_algorithm_is_wanted_for_results_of_types_that_it_does_not_document(bindings, types):
    problem = gemm_problem(3, 5, 7, *types, "nn")
    with pytest.raises(UnsupportedError, match=f"cuBLASLt documents no product of {types[0]} into {types[1]}"):
        multiply(bindings, problem, random_inputs(problem, 0))
    assert bindings.launched == []


def test_an_algorithm_that_does_not_run_says_so(bindings):
    def fails(*arguments):
        raise bindings.cuBLASLtError("execution failed. You can set CUBLASLT_LOG_LEVEL=5")

    bindings.matmul = fails
    problem = gemm_problem(3, 5, 7, "float32", "float32", "nn")
    with pytest.raises(UnsupportedError, match=r"does not run its own algorithm: execution failed$"):
        multiply(bindings, problem, random_inputs(problem, 0))


def test_without_the_library_the_remedy_is_named():
    with installed_nvmath(None), pytest.raises(UnsupportedError) as refused:
        CublasLt(0, 0)
    assert "pip install 'gemmule[bench]'" in str(refused.value)
    assert "--no-baseline" in str(refused.value)


def test_a_library_that_does_not_start_names_the_remedy(bindings):
    def create():
        raise bindings.cuBLASLtError("the library was not initialized. You can set CUBLASLT_LOG_LEVEL=5")

    bindings.create = create
    with pytest.raises(UnsupportedError, match="does not start: the library was not initialized; pip install"):
        CublasLt(0, 0)
