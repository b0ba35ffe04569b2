"""Operands packed for the copy engine: which are, where the product finds them, and who multiplies."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import Precision
from gemmule.core.epilogue import Epilogue, Expression
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import TensorMapParam, TensorParam
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.spec import Choice
from gemmule.dispatch.rates_table import rates_for
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm_repacked import spec as repacked
from gemmule.kernels.hopper.gemm_repacked.config import PackingConfig
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC
from gemmule.kernels.hopper.gemm_unaligned.config import UnalignedGemmConfig
from gemmule.kernels.hopper.gemm_unaligned.spec import SPEC as RAGGED_RESULT
from gemmule.kernels.hopper.repack_config import RepackConfig
from gemmule.lab.products import gemm_problem, own_product

HOPPER = Arch.parse("sm_90a")


def product(m, n, k, layout="nn"):
    return gemm_problem(m, n, k, "bfloat16", "bfloat16", layout)


@pytest.mark.parametrize(
    ("shape", "layout", "name"),
    [
        ((2048, 2048, 2048), "nn", "hopper_gemm"),
        ((2047, 2048, 2048), "nn", "hopper_gemm"),
        ((2048, 2047, 2048), "nt", "hopper_gemm_unaligned"),
        ((2048, 2047, 2048), "nn", "hopper_gemm_repacked"),
        ((2048, 2048, 2047), "nn", "hopper_gemm_repacked"),
        ((2047, 2048, 2048), "tn", "hopper_gemm_repacked"),
        ((2047, 2047, 2047), "tt", "hopper_gemm_repacked"),
    ],
)
def test_only_what_needs_packing_is_packed(shape, layout, name):
    assert choose(product(*shape, layout), HOPPER, multiprocessors=132).spec.name == name


def without_contiguous_lines(matrix):
    """Return the view that has every other element of lines twice as long."""
    return dataclasses.replace(matrix, row_stride=2 * matrix.row_stride, col_stride=2 * matrix.col_stride)


@pytest.mark.parametrize(
    ("element", "out", "precision", "step", "length"),
    [
        # Lines are what has the smaller stride; along K, as wgmma takes other types than those of 16 bits.
        ("bfloat16", "bfloat16", Precision.IEEE, 2, 1024),
        ("float16", "float32", Precision.IEEE, 2, 1024),
        ("int8", "int32", Precision.IEEE, 2048, 512),
        ("float8_e4m3fn", "bfloat16", Precision.FLOAT8, 2048, 512),
    ],
)
def test_operands_without_contiguous_lines_are_gathered(element, out, precision, step, length):
    problem = dataclasses.replace(gemm_problem(2048, 1024, 512, element, out, "nn"), precision=precision)
    problem = dataclasses.replace(problem, b=without_contiguous_lines(problem.b))
    assert choose(problem, HOPPER, multiprocessors=132).spec.name == "hopper_gemm_repacked"
    source, _ = SPEC.launch(problem, SPEC.default).params
    assert (source.operand, source.strides[0], source.shape[0]) == ("b", step, length)
    assert SPEC.next_kernel(problem, SPEC.default).problem.b.is_row_major == (length == 1024)


def test_beside_a_gathered_operand_others_are_k_major():
    problem = gemm_problem(2048, 1024, 512, "int8", "int32", "nn")
    problem = dataclasses.replace(problem, a=without_contiguous_lines(problem.a))
    prepared = SPEC.next_kernel(problem, SPEC.default).problem
    assert prepared.a.has_contiguous_rows
    assert prepared.b.has_contiguous_cols


@pytest.mark.parametrize(
    ("shape", "layout", "name"),
    [
        # Packing the large B costs more than reading it once, in copies of 8 bytes.
        ((17, 12706, 4332), "nt", "mma_sync_gemm"),
        # In copies of single elements it does not.
        ((59, 2314, 1769), "nt", "hopper_gemm_repacked"),
        ((380, 117, 15), "nn", "mma_sync_small"),
        ((957, 181, 1058), "tt", "hopper_gemm_repacked"),
        # A short K, but a large result.
        ((12077, 11409, 21), "tn", "hopper_gemm_repacked"),
    ],
)
def test_what_does_not_pay_for_packing_is_left_to_others(shape, layout, name):
    choice = choose(product(*shape, layout), HOPPER, multiprocessors=132)
    assert choice.spec.name == name
    reason = dict(choice.refused).get("hopper_gemm_repacked")
    assert reason == (None if choice.spec is SPEC else f"supported, but {name} has a lower predicted time")


def test_packing_waits_for_results_of_a_short_k():
    # On an H200 6.8 us by mma_sync_gemm, 9.3 packed (record 20261122T113015).
    short = gemm_problem(728, 2856, 72, "int8", "int32", "nt")
    assert choose(short, HOPPER, multiprocessors=132).spec.name == "mma_sync_gemm"


def test_rows_of_a_result_that_begin_anywhere_take_longer_to_be_written():
    # 6.0 us by h01, 5.0 packed (the same record).
    others = [spec for spec in REGISTRY if spec.name != "mma_sync_small"]
    assert choose(product(91, 70, 246, "nt"), HOPPER, others, multiprocessors=132).spec is SPEC


def test_reading_c_and_an_epilogue_are_counted(monkeypatch):
    # Launches of products without these take less time.
    monkeypatch.setattr(repacked, "_RESIDENT_LAUNCH", repacked._LAUNCH)
    others = [spec for spec in REGISTRY if spec.name != "mma_sync_small"]

    def read_as_they_lie(change):
        problems = [dataclasses.replace(product(2000, 64, k, "nt"), **change) for k in range(60, 400, 4)]
        return sum(choose(one, HOPPER, others, multiprocessors=132).spec.name == "mma_sync_gemm" for one in problems)

    plain = read_as_they_lie({})
    # The kernel that multiplies what is packed finishes a tile while it multiplies the next.
    assert read_as_they_lie({"c": product(2000, 64, 60, "nt").d, "beta": 1}) < plain
    assert read_as_they_lie({"epilogue": Epilogue(Expression(("acc", "gelu 0")))}) < plain


def test_threads_of_packing_have_few_vectors_where_there_is_little_to_pack():
    few = choose(product(957, 181, 1058, "tt"), HOPPER, multiprocessors=132).config
    assert few == PackingConfig(threads=256, vectors=1)
    others = [spec for spec in REGISTRY if spec.name != "hopper_gemm_small_repacked"]
    many = choose(product(2944, 84, 13907, "nt"), HOPPER, others, multiprocessors=132).config
    assert many == PackingConfig(threads=128, vectors=2)


def test_packing_is_not_left_to_a_kernel_that_cannot():
    registry = [SPEC, *(spec for spec in REGISTRY if spec.name == "gemm_reference")]
    assert choose(product(380, 117, 15), HOPPER, registry, multiprocessors=132).spec is SPEC


@pytest.mark.parametrize(
    ("shape", "packed", "name"),
    [
        ((2048, 2047, 2048), {"packed b"}, "hopper_gemm_unaligned"),
        ((2048, 2048, 2047), {"packed a"}, "hopper_gemm"),
        ((2047, 2047, 2047), {"packed a", "packed b"}, "hopper_gemm_unaligned"),
    ],
)
def test_what_follows(shape, packed, name):
    problem = product(*shape)
    then = SPEC.next_kernel(problem, SPEC.default)
    assert set(then.workspaces) == packed
    assert then.spec.name == name
    assert then.spec.why_not(then.problem, HOPPER, then.config) is None
    assert then.problem.d == problem.d
    named = {param.operand for param in SPEC.launch(problem, SPEC.default).params}
    assert named == packed | {space.split()[1] for space in packed}
    assert {then.operands[space.split()[1]] for space in packed} == packed


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_workspaces_hold_what_the_maps_reach(layout):
    problem = dataclasses.replace(product(131, 77, 53, layout))
    then = SPEC.next_kernel(problem, SPEC.default)
    maps = [p for p in then.spec.launch(then.problem, then.config).params if isinstance(p, TensorMapParam)]
    written = {p.operand: p for p in SPEC.launch(problem, SPEC.default).params if isinstance(p, TensorParam)}
    for param in maps:
        if param.operand not in "ab":
            continue
        space = then.operands[param.operand]
        length, lines, _ = param.extents
        assert param.pitches[0] % 128 == 0
        assert lines * param.pitches[0] <= then.workspaces[space]
        assert written[space].shape == (length, lines, 1)
        assert written[space].strides[0] * 2 == param.pitches[0]


def test_pointers_between_two_multiples_of_16_bytes_are_packed():
    problem = product(2048, 2048, 2048)
    late = dataclasses.replace(problem, a=dataclasses.replace(problem.a, alignment=2))
    choice = choose(late, HOPPER, multiprocessors=132)
    assert choice.spec is SPEC
    assert set(choice.next_kernel(late).workspaces) == {"packed a"}
    d = dataclasses.replace(problem, d=dataclasses.replace(problem.d, alignment=2))
    assert choose(d, HOPPER, multiprocessors=132).spec is RAGGED_RESULT


def test_batches_are_packed_one_behind_the_other():
    dtype = product(8, 8, 8).a.dtype
    a, b, d = (contiguous(dtype, *shape, (2, 3)) for shape in ((33, 17), (17, 9), (33, 9)))
    problem = dataclasses.replace(product(33, 9, 17), batch=(2, 3), a=a, b=b, d=d)
    choice = choose(problem, HOPPER, (SPEC,), multiprocessors=132)
    assert choice.spec is SPEC
    then = choice.next_kernel(problem)
    assert then.problem.batch == (6,)
    assert then.workspaces == {"packed a": 6 * 33 * 64 * 2, "packed b": 6 * 17 * 64 * 2}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p, "TMA can load A and B as they are"),
        (lambda p: dataclasses.replace(p, a=dataclasses.replace(p.a, col_stride=2, alignment=1)), "of 1 bytes"),
        (lambda p: dataclasses.replace(p, a=dataclasses.replace(p.a, alignment=2), alpha=0), "alpha is 0"),
        (lambda p: dataclasses.replace(p, a=dataclasses.replace(p.a, alignment=1)), "at a multiple of 1 bytes"),
    ],
)
def test_what_is_refused(change, reason):
    assert reason in SPEC.why_not(change(product(64, 64, 64)), HOPPER, SPEC.default)


def test_only_hopper_multiplies_what_is_packed():
    for name in ("sm_80", "sm_100a"):
        assert "sm_90a" in SPEC.why_not(product(63, 63, 63), Arch.parse(name), SPEC.default)
        assert "sm_90a" in RAGGED_RESULT.why_not(product(63, 63, 64, "nt"), Arch.parse(name), RAGGED_RESULT.default)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: dataclasses.replace(p, a=dataclasses.replace(p.a, alignment=8)), "A begins at a multiple of 8"),
        (
            lambda p: dataclasses.replace(p, a=dataclasses.replace(p.a, row_stride=-64)),
            "leading dimension of -128 bytes",
        ),
        (lambda p: dataclasses.replace(p, k=0), "nothing to multiply"),
        (lambda p: dataclasses.replace(p, d=StridedMatrix(p.d.dtype, 64, 63, 128, 2)), "D has strides (128, 2)"),
        (lambda p: dataclasses.replace(p, d=dataclasses.replace(p.d, alignment=1)), "D begins within an element"),
    ],
)
def test_what_the_kernel_for_ragged_results_refuses(change, reason):
    assert reason in RAGGED_RESULT.why_not(change(product(64, 63, 64, "nt")), HOPPER, RAGGED_RESULT.default)


@pytest.mark.parametrize("multiprocessors", [132, 114])
def test_widths_that_were_timed_with_16_bits_are_not_offered_to_tf32(multiprocessors):
    gpu = rates_for("NVIDIA H200", multiprocessors)
    halves, words = (gemm_problem(640, 333, 640, name, name, "nt") for name in ("bfloat16", "float32"))
    words = dataclasses.replace(words, precision=Precision.TF32)
    wide = [one for one in RAGGED_RESULT.configs_on(gpu) if one.tile_n == 192 and one.tile_m == 64]
    assert [one.cluster_m for one in wide] == [2, 4]
    for one in wide:
        assert RAGGED_RESULT.why_not(halves, HOPPER, one) is None
        assert "elements of 16 bits" in RAGGED_RESULT.why_not(words, HOPPER, one)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (RepackConfig, {"threads": 33}),
        (RepackConfig, {"vectors": 0}),
        (UnalignedGemmConfig, {"tile_m": 96}),
        (UnalignedGemmConfig, {"tile_n": 320}),
        (UnalignedGemmConfig, {"stages": 7}),
        (UnalignedGemmConfig, {"tile_m": 256, "tile_n": 128}),
        (UnalignedGemmConfig, {"ctas": 0}),
    ],
)
def test_configs_that_cannot_be(kind, fields):
    with pytest.raises(ArgumentError, match="config"):
        kind(**fields)


def test_other_kernels_have_nothing_behind_them():
    problem = product(64, 63, 64, "nt")
    assert Choice(RAGGED_RESULT, RAGGED_RESULT.default).next_kernel(problem) is None


@pytest.mark.parametrize(
    ("n", "then"),
    [(4096, "hopper_syrk"), (4095, "hopper_syrk"), (128, "hopper_gemm")],
)
def test_a_matrix_and_its_transpose_are_packed_once(n, then):
    problem = own_product(gemm_problem(n, n, 4095, "bfloat16", "bfloat16", "nt"))
    assert SPEC.why_not(problem, HOPPER, SPEC.default) is None
    found = SPEC.next_kernel(problem, SPEC.default)
    assert (found.spec.name, set(found.workspaces)) == (then, {"packed a"})
    assert (found.operands["a"], found.operands["b"]) == ("packed a", "packed a")
    assert found.problem.b == found.problem.a.transposed()
    launch = SPEC.launch(problem, SPEC.default)
    assert {param.operand for param in launch.params} == {"a", "packed a"}
    assert dict(SPEC.signature(problem, SPEC.default))["operands"] == "1"
