"""Products by single kernels on the virtual GPU, of operands laid out in every way."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.core.dtype import DTYPES, accumulator, dtype_named
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.vgpu import Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.arrays import virtual_address
from gemmule.vgpu.execute import run_kernel
from support.oracle import elements_spanned
from support.stray_writes import nothing_strays


def seen(matrix, space, batch):
    """Return a packed matrix of the problem, from its workspace."""
    item = space.itemsize
    bits = np.lib.stride_tricks.as_strided(
        space.view(f"V{item}"),
        (*batch, matrix.rows, matrix.cols),
        [stride * item for stride in (*matrix.batch_strides, matrix.row_stride, matrix.col_stride)],
    )
    return bits.view(space.dtype)


def smallest(spec, problem, wanted=lambda config: True):
    """The config of the smallest tiles that takes the problem."""
    able = [x for x in spec.configs if wanted(x) and spec.why_not(problem, virtual_arch(), x) is None]
    return min(able, key=lambda config: config.tile_elements, default=None)


def in_cluster(config):
    return config.cluster_size > 1


#: Kernels for Hopper alone take less, and are compiled longer: they have tests of their own.
SINGLE = [spec for spec in REGISTRY if spec.next_kernel is None]


OF_HOPPER = [spec for spec in SINGLE if spec.operation == "gemm" and all(arch.specific for arch in spec.archs)]


#: Those among them that take products of any two matrices; what takes 8-bit weights along K only is in another file.
HOPPER = [spec for spec in OF_HOPPER if not spec.is_syrk and spec.name != "hopper_gemm_w8a16"]


#: Kernels of results of which not all is needed: they have tests of their own, too.
TRIANGLES = ("simt_syrk", "float64_syrk")


GEMMS = [
    spec for spec in SINGLE
    if spec.operation == "gemm" and spec not in OF_HOPPER and spec.name not in TRIANGLES and not spec.is_syrk
]  # fmt: skip


TRANSPOSES = [spec for spec in SINGLE if spec.operation == "transpose"]


def strides_of(kind, batch, rows, cols):
    row, col = {"row": (cols, 1), "col": (1, rows), "padded": (cols + 3, 1), "reversed": (-cols, -1)}[kind]
    size = max(rows * abs(row), cols * abs(col), 1) + 5
    outer = []
    for extent in reversed(batch):
        outer.append(size)
        size *= extent
    return (*reversed(outer), row, col)


def laid_out(values, kind, offset=0):
    """The same values with other strides, in memory of exactly the size that they need, `offset` elements into it."""
    *batch, rows, cols = values.shape
    strides = strides_of(kind, batch, rows, cols)
    low, high = elements_spanned(values.shape, strides)
    storage = np.zeros(offset + high - low, f"V{values.itemsize}")
    item = values.itemsize
    view = np.ndarray(
        values.shape, storage.dtype, storage, (offset - low) * item, [stride * item for stride in strides]
    ).view(values.dtype)
    view[...] = values
    return view


def matrix(array):
    item = array.itemsize
    strides = [stride // item for stride in array.strides]
    address = virtual_address(array)
    alignment = min((address & -address) or 256, 256)
    rows, cols = array.shape[-2:]
    return StridedMatrix(dtype_named(array.dtype.name), rows, cols, *strides[-2:], tuple(strides[:-2]), alignment)


def problem_of(a, b, out, c=None, alpha=1, beta=0):
    (m, k), n = a.shape[-2:], b.shape[-1]
    c_matrix = matrix(c) if c is not None and beta else None
    return GemmProblem(m, n, k, out.shape[:-2], matrix(a), matrix(b), c_matrix, matrix(out), alpha, beta)


def size_of(config):
    """What configs are ordered by, so that the first is compiled and run soonest.

    Tiles of one matrix a CTA, of simt_batched, are small and unrolled for 32 k: they have a test of their own.
    """
    return getattr(config, "matrices", 2) == 1, config.tile_elements


def multiply(spec, a, b, out, c=None, alpha=1, beta=0, config=None, **options):
    """Run a kernel, in the config with the smallest tiles that takes the product if none is given."""
    problem = problem_of(a, b, out, c, alpha, beta)
    able = [config for config in spec.configs if spec.why_not(problem, virtual_arch(), config) is None]
    config = config or min(able, key=size_of, default=spec.default)
    if reason := spec.why_not(problem, virtual_arch(), config):
        pytest.skip(reason)
    return run_product(Choice(spec, config), problem, a, b, out, c, **options)


def run_product(choice, problem, a, b, out, c=None, **options):
    """Run a kernel in a config that takes the product, all checks on; return the result."""
    assert choice.spec.why_not(problem, virtual_arch(), choice.config) is None
    arrays = {"a": a, "b": b, "d": out} | ({"c": c} if c is not None else {})
    with nothing_strays(out):
        run_kernel(problem, choice, arrays, Options(checks=True, **options))
    return out


def types_of(spec):
    """Input and output types that the kernel takes."""
    found = []
    for dtype in DTYPES:
        for out in dict.fromkeys((dtype, accumulator(dtype, dtype))):
            a, b = (np.zeros((64, 64), dtype.numpy()) for _ in range(2))
            problem = problem_of(a, b, np.zeros((64, 64), out.numpy()))
            if spec.why_not(problem, virtual_arch(), spec.default) is None:
                found.append((dtype, out))
    return found


def case_id(value):
    return getattr(value, "name", str(value))
