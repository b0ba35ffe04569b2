"""The registry and the choice of a kernel, with the kernel compiler blocked."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import math
import pickle
import subprocess
import sys
import textwrap

import pytest

from gemmule.core.arch import Arch
from gemmule.core.block_triangle import STEP, BlockTriangle
from gemmule.core.dtype import BFLOAT16, DTYPES, FLOAT8_E4M3, FLOAT32, FLOAT64, INT8, Precision, dtype_named
from gemmule.core.epilogue import Epilogue, Expression
from gemmule.core.errors import ArgumentError, UnsupportedError
from gemmule.core.layout import StridedMatrix, compact_strides, contiguous
from gemmule.core.permutation import transpose_problem
from gemmule.core.problem import GemmProblem, contiguous_gemm, split_batch
from gemmule.core.row_major import MAX_GRID
from gemmule.dispatch.choices.candidates import supported_name
from gemmule.dispatch.registry import EVERY_KERNEL, LADDER, REGISTRY
from gemmule.dispatch.select import choose
from gemmule.kernels.transpose.tile_config import ByteTileConfig
from gemmule.lab.products import gemm_problem, own_product
from gemmule.lab.transposes import problem_for, transpose_of

HOPPER = Arch.parse("sm_90a")


def gemm(a, b, d):
    return GemmProblem(8, 8, 8, (), contiguous(a, 8, 8), contiguous(b, 8, 8), None, contiguous(d, 8, 8))


def test_the_reference_kernels_stand_last():
    for operation in ("gemm", "transpose"):
        assert [spec.name for spec in REGISTRY if spec.operation == operation][-1] == f"{operation}_reference"


def test_names_are_unique_and_folders_exist():
    assert len({spec.name for spec in REGISTRY}) == len(REGISTRY)
    for spec in REGISTRY:
        assert importlib.util.find_spec(spec.package), spec.name


def test_the_ladder_is_registered_and_ordered():
    names = [spec.name for spec in REGISTRY]
    assert set(LADDER) <= set(names)
    for letter in "gdh":
        rungs = [name for name in LADDER if name[0] == letter]
        assert rungs == sorted(rungs)
        # The later rung is tried first, but the rungs below the last Hopper kernel come after what takes every product.
        first = ["hopper_gemm"] if letter == "h" else []
        others = [name for name in rungs[::-1] if name not in first]
        assert [name for name in names if name in rungs] == first + others


@pytest.mark.parametrize(("extent", "tile"), [(8192, (128, 256)), (2048, (128, 256)), (512, (32, 64)), (1, (32, 32))])
def test_the_tiles_that_take_least_time(extent, tile):
    a = contiguous(FLOAT32, extent, extent)
    problem = GemmProblem(extent, extent, extent, (), a, a, None, a)
    choice = choose(problem, HOPPER, multiprocessors=132)
    # Of large products an operand is transposed first.
    last = choice.next_kernel(problem) or choice
    assert last.spec.name == "simt_gemm"
    assert (last.config.tile_m, last.config.tile_n) == tile


@pytest.mark.parametrize(("m", "n"), [(2**24, 64), (10**6, 1), (20000, 8)])
def test_narrow_results_get_narrow_tiles(m, n):
    a, b, d = contiguous(FLOAT32, m, 64), contiguous(FLOAT32, 64, n), contiguous(FLOAT32, m, n)
    choice = choose(GemmProblem(m, n, 64, (), a, b, None, d), HOPPER, multiprocessors=132)
    assert choice.config.tile_n <= 64


@pytest.mark.parametrize(
    ("dtype", "batch", "name"),
    [
        (FLOAT32, (70000,), "simt_batched"),
        (FLOAT32, (300, 300), "simt_batched"),
        (FLOAT64, (16,), "float64_gemm"),
        (FLOAT64, (70000,), "simt_batched"),
    ],
)
def test_a_long_batch_takes_few_launches(dtype, batch, name):
    a = contiguous(dtype, 16, 16, batch)
    problem = GemmProblem(16, 16, 16, batch, a, a, None, a)
    choice = choose(problem, HOPPER, multiprocessors=132)
    assert choice.spec.name == name
    inner, outer, _ = split_batch(problem, choice.batch_dims)
    assert math.prod(outer) <= 16
    assert all(ctas <= most for ctas, most in zip(choice.spec.launch(inner, choice.config).grid, MAX_GRID, strict=True))


def _spread_batch(first):
    """A product whose two batch dimensions merge in no operand: `first` launches of kernels of one dimension."""
    matrix = StridedMatrix(FLOAT32, 16, 16, 16, 1, (1 << 22, 512), 256)
    return GemmProblem(16, 16, 16, (first, 5000), matrix, matrix, None, matrix)


def _kernels(**changes):
    """A kernel whose launches cover one batch dimension, and one of two, with changes."""
    specs = {spec.name: spec for spec in REGISTRY}
    return specs["simt_gemm"], dataclasses.replace(specs["gemm_reference"], **changes)


def test_a_kernel_of_fewer_batch_dimensions_takes_what_no_other_takes():
    relu = dataclasses.replace(_spread_batch(40), epilogue=Epilogue(Expression(("acc", "relu 0"))))
    for problem, changes, name in (
        (_spread_batch(40), {}, "gemm_reference"),
        (relu, {}, "gemm_reference"),
        # It covers more, and computes no epilogue.
        (relu, {"epilogues": False}, "simt_gemm"),
        (_spread_batch(4096), {"why_not": lambda problem, arch, config: "it takes nothing"}, "simt_gemm"),
        # Of what covers most the launches are not limited.
        (_spread_batch(4097), {"batch_dims": 1}, "simt_gemm"),
    ):
        assert choose(problem, HOPPER, _kernels(**changes)).spec.name == name


@pytest.mark.parametrize(("side", "name"), [(16, "gemm_reference"), (2048, "hopper_gemm")], ids=["small", "large"])
def test_large_matrices_whose_batch_does_not_merge_have_a_launch_each(side, name):
    matrix = contiguous(BFLOAT16, side, side, (17, 17))
    spread = dataclasses.replace(matrix, batch_strides=(40 * side * side, side * side))
    problem = GemmProblem(side, side, side, (17, 17), spread, spread, None, matrix)
    assert choose(problem, HOPPER, multiprocessors=132).spec.name == name


def test_a_kernel_is_supported_up_to_the_most_launches():
    found = [supported_name("simt_gemm", _spread_batch(first), HOPPER, _kernels()) for first in (16, 17)]
    assert found == ["simt_gemm", None]


def test_a_product_of_too_many_launches_says_so():
    kernels = _kernels(why_not=lambda problem, arch, config: "it takes nothing")
    message = r"^simt_gemm: it would need 4097 launches for a batch of \(4097, 5000\), of at most 4096; pass contig"
    with pytest.raises(UnsupportedError, match=message):
        choose(_spread_batch(4097), HOPPER, kernels)


SCALAR_RUNGS = [spec for spec in REGISTRY if spec.name in LADDER and spec.name[0] in "gd"]


@pytest.mark.parametrize("spec", SCALAR_RUNGS, ids=lambda spec: spec.name)
def test_matrices_of_a_batch_that_begin_anywhere_are_not_taken_for_aligned(spec):
    dtype = FLOAT64 if spec.name[0] == "d" else FLOAT32
    inner = contiguous(dtype, 768, 768, (3,))
    for batch in ((3,), (2, 3)):
        odd = dataclasses.replace(inner, batch_strides=(768 * 768 * 3 + 1, 768 * 768)[-len(batch) :])
        if len(batch) == 1:
            odd = dataclasses.replace(odd, batch_strides=(768 * 768 + 1,))
        d = contiguous(dtype, 768, 768, batch)
        problem, _, _ = split_batch(GemmProblem(768, 768, 768, batch, odd, odd, None, d), spec.batch_dims)
        signature = dict(spec.signature(problem, spec.default))
        assert signature["tiles"] == "ragged"
        assert signature.get("copies", "4") == "4"


def test_a_spec_survives_the_way_to_another_process():
    for spec in EVERY_KERNEL:
        assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_the_kernels_of_a_guarded_product_survive_it_too(dtype):
    plain = gemm_problem(4096, 4096, 4096, dtype, dtype, "nn")
    problem = dataclasses.replace(plain, precision=Precision.OZAKI)
    choice = choose(problem, Arch.parse("sm_90a"), multiprocessors=132)
    then = choice.next_kernel(problem)
    assert len({one.spec.name for one in then.chain()}) > 1
    for one in then.chain():
        assert pickle.loads(pickle.dumps(one.spec)) == one.spec


@pytest.mark.parametrize("values", [{"tile_k": 4}, {"tile_m": 100}, {"stages": 1}, {"tile_m": 64, "warps_m": 4}])
def test_impossible_configs_are_refused(values):
    spec = next(spec for spec in REGISTRY if spec.name == "g07_cp_async")
    with pytest.raises(ArgumentError, match="config tile_m="):
        dataclasses.replace(spec.default, **values)


def _taken(spec):
    """Return a problem that a kernel takes in its default config."""
    if spec.operation == "transpose":
        sizes = ((512, 512, 4), (511, 513, 4), (256, 256, 1), (255, 257, 1), (3, 4096, 4), (77, 3001, 1))
        problems = [problem_for(spec, spec.default, HOPPER, transpose_of(*size)) for size in sizes]
        # The first two axes of three change places, and rows stay whole.
        shape = (64, 48, 32)
        problems.append(transpose_problem(shape, (32, 64 * 32, 1), compact_strides(shape), 4))
        # Three axes in reverse.
        problems.append(transpose_problem((36, 40, 48), (1, 36, 1440), (1920, 48, 1), 4))
        # Many small matrices.
        shape = (16384, 8, 12)
        strides = (96, 1, 8), compact_strides(shape)
        problems += [transpose_problem(shape, *strides, itemsize, (16, 16)) for itemsize in (4, 1)]
        # Some larger ones with odd rows.
        shape = (1000, 51, 49)
        problems.append(transpose_problem(shape, (51 * 49, 1, 51), compact_strides(shape), 1, (16, 16)))
    else:
        types = ("float32", "float64", "float16", "float8_e4m3fn", "complex64", "complex128")
        # Rows of whole 16 bytes; a result without, and nothing but such.
        shapes = ((512, 512, 256, "nn"), (512, 513, 256, "nt"), (511, 513, 259, "nn"))
        outs = {"float8_e4m3fn": "float16"}
        problems = [
            gemm_problem(m, n, k, dtype, outs.get(dtype, dtype), layout)
            for dtype in types
            for m, n, k, layout in shapes
        ]
        problems += [dataclasses.replace(problems[0], precision=one) for one in (Precision.BF16X6, Precision.TF32)]
        emulated = (Precision.OZAKI_15, Precision.OZAKI)
        problems += [
            dataclasses.replace(x, precision=one) for one in emulated for x in problems if x.a.dtype.itemsize > 4
        ]
        problems += [dataclasses.replace(problems[place], needed=BlockTriangle(0, STEP)) for place in (0, len(shapes))]
        problems.append(contiguous_gemm(64, 64, 64, ("complex64", "complex128", "complex128")))
        owns = ("float16", "complex64", "complex128")
        problems += [own_product(gemm_problem(512, 512, 256, dtype, dtype, "nt")) for dtype in owns]
    return next(problem for problem in problems if spec.why_not(problem, _arch_of(spec), spec.default) is None)


def _arch_of(spec):
    """Return Hopper where a kernel is compiled for it."""
    return HOPPER if spec.signatures(HOPPER) else Arch.parse("sm_89")


@pytest.mark.parametrize("spec", REGISTRY, ids=lambda spec: spec.name)
def test_fields_below_one_are_refused_or_have_a_meaning(spec):
    problem, meant = _taken(spec), set()
    for config in spec.configs:
        for name, value in itertools.product(config.as_dict(), (0, -1)):
            try:
                other = dataclasses.replace(config, **{name: value})
            except ArgumentError:
                continue
            meant.add((name, value))
            if spec.why_not(problem, _arch_of(spec), other) is None:
                launch = spec.launch(problem, other)
                assert min(*launch.grid, *launch.block) >= 1
    assert meant <= {
        (name, 0)
        for name in (
            "pingpong",
            "swap_ab",
            "group",
            "stream_k",
            "split_k",
            "side_by_side",
            "batch",
            "wide_copies",
            "tma",
        )
    }
    # In a product 0 tiles before the next column have no meaning, but for one that begins with a transpose.
    assert spec.operation == "transpose" or isinstance(spec.default, ByteTileConfig) or ("group", 0) not in meant


@pytest.mark.parametrize("values", [{"cluster_k": 2}, {"tile_m": 96}, {"tile_m": 512, "warps_m": 8}])
def test_tiles_of_a_block_triangle_divide_its_steps(values):
    spec = next(spec for spec in REGISTRY if spec.name == "float64_syrk")
    problem, config = _taken(spec), dataclasses.replace(spec.default, **values)
    assert "tiles must divide steps of 256, one CTA each" in spec.why_not(problem, HOPPER, config)
    whole = next(spec for spec in REGISTRY if spec.name == "float64_gemm")
    assert "steps" not in (whole.why_not(problem, HOPPER, config) or "")


@pytest.mark.parametrize("values", [{"pingpong": 2}, {"swap_ab": 2}])
def test_switches_are_0_or_1(values):
    spec = next(spec for spec in REGISTRY if spec.name == "hopper_gemm")
    with pytest.raises(ArgumentError, match="must be 0 or 1"):
        dataclasses.replace(spec.default, **values)


def test_a_cluster_needs_its_ctas():
    spec = next(spec for spec in REGISTRY if spec.name == "h08_pingpong")
    with pytest.raises(ArgumentError, match="ctas must be 2 or more"):
        dataclasses.replace(spec.default, ctas=1)


def test_what_a_kernel_for_row_major_matrices_refuses():
    spec = next(spec for spec in REGISTRY if spec.name == "g04_register_tile")

    def reason(m=8, n=8, k=8, **operands):
        problem = GemmProblem(
            m, n, k, (), contiguous(FLOAT32, m, k), contiguous(FLOAT32, k, n), None, contiguous(FLOAT32, m, n)
        )
        return spec.why_not(dataclasses.replace(problem, **operands), HOPPER, spec.default)

    assert reason() is None
    assert reason(n=1, d=contiguous(FLOAT32, 1, 8).transposed()) is None
    assert "A is float64; this kernel takes float32 only" in reason(a=contiguous(FLOAT64, 8, 8))
    assert "B has strides (1, 8)" in reason(b=contiguous(FLOAT32, 8, 8).transposed())
    assert "K=1073741825 is more than 1073741824" in reason(k=2**30 + 1)
    assert "8388608 CTAs along y, more than the 65535" in reason(m=2**30)


@pytest.mark.parametrize(
    ("b", "copies"),
    [
        (contiguous(FLOAT32, 64, 64), "16"),
        (contiguous(FLOAT32, 64, 1), "4"),
        (StridedMatrix(FLOAT32, 64, 64, 66, 1), "4"),
        (StridedMatrix(FLOAT32, 64, 64, 1, 66), "4"),
        (StridedMatrix(FLOAT32, 64, 64, 1, 1), "4"),
        (StridedMatrix(FLOAT32, 64, 64, 1, 68), "16"),
        (dataclasses.replace(contiguous(FLOAT32, 64, 64), alignment=8), "4"),
    ],
)
def test_wide_copies_need_aligned_rows(b, copies):
    """A column of unit row stride is row-major too, but its rows begin anywhere."""
    spec = next(spec for spec in REGISTRY if spec.name == "g07_cp_async")
    problem = GemmProblem(64, b.cols, 64, (), contiguous(FLOAT32, 64, 64), b, None, contiguous(FLOAT32, 64, b.cols))
    if b.cols == 1:
        problem = dataclasses.replace(problem, d=StridedMatrix(FLOAT32, 64, 1, 4, 1))
    assert dict(spec.signature(problem, spec.default))["copies"] == copies


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_finds_a_kernel(dtype):
    assert choose(gemm(dtype, dtype, dtype), HOPPER).spec in REGISTRY


def test_reasons():
    with pytest.raises(UnsupportedError, match="gemm_reference: float32 x float32 accumulates in float32"):
        choose(gemm(FLOAT32, FLOAT32, INT8), HOPPER)
    with pytest.raises(UnsupportedError, match=r"8\.9 or newer"):
        choose(gemm(FLOAT8_E4M3, FLOAT8_E4M3, FLOAT32), Arch.parse("sm_80"))
    with pytest.raises(UnsupportedError, match="int32"):
        choose(gemm(INT8, INT8, FLOAT64), HOPPER)


def test_refused_kernels_are_remembered():
    picky = [spec for spec in REGISTRY if spec.operation == "gemm"]
    first = dataclasses.replace(picky[-1], name="picky", why_not=lambda problem, arch, config: "does not like it")
    choice = choose(gemm(FLOAT32, FLOAT32, FLOAT32), HOPPER, [first, *picky])
    assert choice.refused[0] == ("picky", "does not like it")
    assert choice.spec is not first


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((8, 7), "sm_87"),
        ((12, 1), "sm_121a"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
    ],
)
def test_architecture_of_a_gpu(capability, name):
    assert Arch.for_device(*capability).name == name


def test_unknown_architectures():
    with pytest.raises(UnsupportedError, match=r"7\.0"):
        Arch.for_device(7, 0)
    with pytest.raises(ArgumentError, match="sm_90a"):
        Arch.parse("hopper")


def test_import_and_registry_need_no_compiler_and_no_gpu_package():
    script = textwrap.dedent("""
        import sys
        for blocked in ("cutlass", "cuda", "cuda.bindings", "cuda.core", "torch", "cupy", "jax"):
            sys.modules[blocked] = None
        import numpy as np
        import gemmule as gm
        # Nobody who multiplies arrays waits for what streams files.
        assert not {"gemmule.outofcore", "gemmule.lab", "gemmule.vgpu"} & set(sys.modules)
        a = np.arange(6.0).reshape(2, 3)
        assert (gm.matmul(a, a.T) == a @ a.T).all()
        assert gm.matmul.plan(a, a.T).executor == "cpu"
        # A call on the host loads no spec, and a product few of a transpose.
        assert not [name for name in sys.modules if name.startswith("gemmule.kernels") and name.endswith("spec")]
        from gemmule.dispatch.registry import kernels_of
        assert kernels_of("gemm") is kernels_of("gemm")
        assert "gemmule.kernels.ladder.transpose_rungs" not in sys.modules
        from gemmule.dispatch.registry import REGISTRY
        print(len(REGISTRY))
    """)
    run = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) == len(REGISTRY)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "float32", "float64"])
@pytest.mark.parametrize("batch", [(0,), (2, 0)])
@pytest.mark.parametrize("edge", [1, 33, 64])
def test_an_empty_batch_is_taken(dtype, batch, edge):
    kind = dtype_named(dtype)
    a = contiguous(kind, edge, edge, batch)
    d = contiguous(dtype_named("int32") if dtype == "int8" else kind, edge, edge, batch)
    assert choose(GemmProblem(edge, edge, edge, batch, a, a, None, d), Arch.parse("sm_90a"), multiprocessors=132)
