"""Plans for a chip by its name, without a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.arch import Arch
from gemmule.core.chips import CHIPS
from gemmule.core.dtype import numpy_dtype
from gemmule.core.problem import contiguous_gemm
from gemmule.core.spec import Choice
from gemmule.dispatch.grouped import choose_grouped
from gemmule.dispatch.quantize import choose_quantize
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm.spec import SPEC as HOPPER_GEMM

HOPPER = Arch(9, 0, True)
DRIVER_NAMES = {"h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200"}
DTYPES = ("bfloat16", "float16", "float32", "float64", "int8", "int32", "complex64", "float8_e4m3fn")
SHAPES = ((64, 64, 64), (200, 100, 300), (63, 65, 67), (1, 512, 512), (1024, 768, 2048))


def operands(shape, dtype):
    m, n, k = shape
    return np.empty((m, k), numpy_dtype(dtype)), np.empty((k, n), numpy_dtype(dtype))


@pytest.mark.parametrize("chip", DRIVER_NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_and_time_of_a_call_on_that_gpu(chip, dtype):
    for shape in SHAPES:
        a, b = operands(shape, dtype)
        plan = gm.matmul.plan(a, b, chip=chip)
        problem = contiguous_gemm(*shape, (dtype, dtype, dtype))
        there = choose(problem, HOPPER, multiprocessors=132, chip=DRIVER_NAMES[chip])
        assert (plan.kernel, plan.config) == (there.spec.name, there.config.as_dict())
        assert plan.predicted_us == there.predicted_us
        assert plan.predicted_us >= 0.9e6 * plan.bound_s


def test_the_lines_of_a_plan():
    a, b = operands((1000, 1000, 1000), "bfloat16")
    plan = gm.matmul.plan(a, b, chip="H100")
    verdict, why, *_ = str(plan).splitlines()
    assert verdict.startswith(f"matmul: {plan.kernel} on H100 SXM 80 GB (gpu); expected ")
    assert verdict.endswith(" TFLOP/s")
    assert why.startswith("why: chip= is given")
    for spelling in ("h100", "H100 SXM 80 GB", "h100-sxm", DRIVER_NAMES["h100"]):
        assert str(gm.matmul.plan(a, b, chip=spelling)) == str(plan)


def test_a_config_that_was_tuned_on_another_chip_has_a_predicted_time():
    a, b = operands((4096, 4096, 4096), "bfloat16")
    lent = gm.matmul.plan(a, b, chip="h100")
    assert lent.chosen_by == "tuned"
    assert "shipped for H200" in lent.chosen_from
    assert lent.predicted_us == HOPPER_GEMM.cost(lent.problem, lent.choice.config, lent.choice.gpu)


def test_a_tuned_config_that_is_not_offered_to_a_product_has_no_predicted_time(monkeypatch):
    # Of this product K stays whole, in many waves.
    a, b = operands((16384, 16384, 256), "bfloat16")
    split = next(one for one in HOPPER_GEMM.configs if one.split_k)
    tuned = Choice(HOPPER_GEMM, split, (), "tuned", None, "another chip")
    monkeypatch.setattr("gemmule.api.planning.named_chips.choose_for_chip", lambda *_: tuned)
    plan = gm.matmul.plan(a, b, chip="h100")
    assert plan.config == split.as_dict()
    assert plan.predicted_us is None


def test_a_product_of_any_strides_and_types_has_a_predicted_time():
    for types in ((np.int32, np.int32), (np.int8, np.float16)):
        a, b = np.empty((512, 1024), types[0])[:, ::2], np.empty((512, 256), types[1])
        plan = gm.matmul.plan(a, b, chip="h200")
        assert plan.kernel == "hopper_gemm_upcast"
        assert plan.predicted_us > 0
        for chip in ("a100", "rtx4090", "b200"):
            assert gm.matmul.plan(a, b, chip=chip).kernel == "gemm_upcast"


def test_a_named_kernel_runs_its_config_of_least_predicted_time():
    for n, by in ((4096, "tuned"), (3000, "cost")):
        a, b = operands((n, n, n), "bfloat16")
        usual = gm.matmul.plan(a, b, chip="h200")
        named = gm.matmul.plan(a, b, kernel="hopper_gemm", chip="h200")
        assert (named.kernel, named.config, named.chosen_by) == (usual.kernel, usual.config, by)
        first = gm.matmul.plan(a, b, kernel="hopper_gemm[0]", chip="h200")
        assert first.chosen_by == "single"
        assert first.config != named.config
        # Of the configs that a field leaves, not the tuned one.
        several = gm.matmul.plan(a, b, kernel=f"hopper_gemm[tile_n={first.config['tile_n']}]", chip="h200")
        assert (several.chosen_by, several.config["tile_n"]) == ("cost", first.config["tile_n"])
        # Predictions of many configs at once are made in single precision.
        assert usual.predicted_us * (1 - 1e-6) <= several.predicted_us <= first.predicted_us


@pytest.mark.parametrize(
    ("types", "options", "copies"),
    [
        (("float32", "bfloat16"), {}, "b as float32 first, into 16.78 MB"),
        (("float16", "bfloat16"), {}, "a as float32 and b as float32 first, into 33.55 MB"),
        (("int8", "float16"), {}, "a as float16 first, into 8.389 MB"),
        (("complex64", "complex128"), {}, "a as complex128 first, into 67.11 MB"),
        (("float32", "complex128"), {}, "a as float64 first, into 33.55 MB"),
        (("float32", "complex128"), {"out_dtype": "complex64"}, "a as float64 first, the result last, into 100.7 MB"),
        (("float64", "float64"), {"precision": "ozaki"}, ""),
        (("float64", "float64"), {}, ""),
    ],
    ids=str,
)
def test_plans_say_what_is_copied_first(types, options, copies):
    a, b = (np.empty((2048, 2048), numpy_dtype(name)) for name in types)
    plan = gm.matmul.plan(a, b, chip="h200", **options)
    assert plan.copies.rpartition(", ")[0] == copies
    assert ("copies: " in str(plan)) == bool(copies)
    strided = gm.matmul.plan(a[:, ::2], b[::2], chip="b200", **options)
    assert strided.copies.startswith("a")


def test_a_bound_names_the_precision_that_it_is_of():
    a, b = operands((4096, 4096, 4096), "float64")
    plain, emulated = (gm.matmul.plan(a, b, precision=one, chip="h200") for one in ("ieee", "ozaki"))
    assert str(plain).splitlines()[-2].endswith("at the chip's peak rates")
    assert emulated.bound_s < plain.bound_s
    assert "at the chip's peak rates with precision='ozaki'" in str(emulated)


@pytest.mark.parametrize(("dtype", "precision"), [("float32", "bf16x6"), ("float64", "ozaki"), ("complex64", "ozaki")])
def test_a_bound_is_of_the_arithmetic_that_runs(dtype, precision):
    a, b = operands((4096, 4096, 4096), dtype)
    plain, allowed = (gm.matmul.plan(a, b, precision=one, chip="a100") for one in ("ieee", precision))
    assert "allowed, but unused" in allowed.precision
    assert allowed.bound_s == plain.bound_s
    assert str(allowed).splitlines()[-2].endswith("at the chip's peak rates")


def test_8_bit_results_of_other_types_are_answered_with_another_type_of_the_result():
    a, b = operands((64, 64, 64), "float16")
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        with pytest.raises(gm.UnsupportedError, match=r"8\.9 or newer, not sm_80; give another out_dtype") as refused:
            gm.matmul.plan(a, b, out_dtype=dtype, chip="a100")
        assert "convert" not in str(refused.value)


@pytest.mark.parametrize("chip", ["a100", "rtx 4090", "b200"])
def test_no_time_is_predicted_by_the_rates_of_another_gpu(chip):
    a, b = operands((1000, 1000, 1000), "bfloat16")
    plan = gm.matmul.plan(a, b, chip=chip)
    assert plan.kernel == "mma_sync_gemm"
    assert plan.predicted_us is None
    assert plan.bound_s > 0
    assert "expected" not in str(plan)
    line = "chosen by: cost (by the rates of another GPU: none were measured on this chip)"
    assert line in str(plan).splitlines()


def test_a_bound_without_the_link_to_the_host():
    a, b = operands((4096, 4096, 4096), "float32")
    h200, h100 = (gm.matmul.plan(a, b, chip=chip) for chip in ("h200", "h100"))
    assert h200.bound_s == pytest.approx(2 * 4096**3 / 67e12)
    assert h100.bound_s == pytest.approx(2 * 4096**3 / 66.9e12)


def test_epilogue_batch_and_own_transpose():
    a, b = np.empty((3, 96, 64), np.float32), np.empty((64, 32), np.float32)
    plan = gm.gemm.plan(a, b, bias=np.empty(32, np.float32), epilogue="relu", chip="h100")
    assert plan.epilogue == "relu(acc + bias)"
    assert plan.predicted_us is not None
    own = np.empty((4096, 4096), np.float16)
    assert gm.matmul.plan(own, own.T, chip="h100").kernel == "hopper_syrk"
    assert gm.matmul.plan(own, own.copy().T, chip="h100").kernel != "hopper_syrk"


def test_alignment_counts():
    whole = np.empty((512, 520), np.float16)
    aligned, shifted = whole[:, :512], whole[:, 1:513]
    assert gm.matmul.plan(aligned, aligned, chip="h100").kernel == "hopper_gemm"
    assert gm.matmul.plan(shifted, shifted, chip="h100").kernel != "hopper_gemm"


def test_transposes():
    x = np.empty((1000, 600), np.float32)
    for plan in (gm.transpose.plan(x, chip="h100"), gm.matrix_transpose.plan(x, chip="h100")):
        assert plan.kernel == gm.transpose.plan(x, chip="h200").kernel != "numpy"
        assert plan.bound_s == pytest.approx(2 * 4 * 1000 * 600 / 3350e9)
        with pytest.raises(
            gm.ArgumentError,
            match=r"this plan is for H100 SXM 80 GB, .*; leave chip out, with arrays in memory, to run it",
        ):
            plan.execute()


E4M3 = numpy_dtype("float8_e4m3fn")
GROUPS = np.arange(8, 72, 8).astype(np.int32)


def plans_of_other_functions(**options):
    a, b = np.empty((64, 512), E4M3), np.empty((8, 256, 512), E4M3)
    tokens, matrices = np.empty((64, 512), np.float16), np.empty((8, 512, 256), np.float16)
    rows, columns, blocks = (np.ones(shape, np.float32) for shape in ((64, 1), (1, 256), (64, 4)))
    yield gm.scaled_gemm.plan(a, b[0].T, rows, columns, **options)
    yield gm.scaled_gemm.plan(a, b[0].T, blocks, np.ones((4, 2), np.float32), **options)
    yield gm.grouped_gemm.plan(tokens, matrices, GROUPS, **options)
    yield gm.grouped_gemm.plan(tokens, matrices, matrices=np.zeros(64, np.int32), **options)
    yield gm.grouped_gemm.plan(a, b.transpose(0, 2, 1), GROUPS, scale_a=rows, scale_b=columns[:, :1], **options)
    yield gm.grouped_gemm.plan(tokens.reshape(8, 8, 512), matrices, **options)
    for by in ("row", "tensor", "block"):
        yield gm.quantize.plan(np.empty((64, 512), np.float32), by=by, **options)


@pytest.mark.parametrize("by", ["row", "tensor", "block"])
def test_the_time_of_quantising_a_stack_is_that_of_all_its_matrices(by):
    plans = [gm.quantize.plan(np.empty(shape, np.float32), by=by, chip="h200") for shape in ((512, 512), (8, 512, 512))]
    one, stack = (plan.predicted_us for plan in plans)
    # By row and by block a stack is one matrix, in one launch.
    assert stack == pytest.approx(8 * one) if by == "tensor" else one < stack < 8 * one


@pytest.mark.parametrize("chip", DRIVER_NAMES)
def test_scaled_and_grouped_products_and_quantisation(chip):
    for plan in plans_of_other_functions(chip=chip):
        assert plan.device == next(one.name for one in CHIPS if DRIVER_NAMES[chip] in one.aliases)
        where = {"multiprocessors": 132, "chip": DRIVER_NAMES[chip]}
        choose_on = {"grouped_gemm": choose_grouped, "quantize": choose_quantize}.get(plan.operation, choose)
        there = choose_on(plan.problem, HOPPER, **where)
        assert (plan.kernel, plan.config) == (there.spec.name, there.config.as_dict())
        assert plan.predicted_us == there.predicted_us
        with pytest.raises(gm.ArgumentError, match=r"^this plan is for H[12]00 SXM .*; leave chip out"):
            plan.execute()


def test_what_no_kernel_takes_there():
    tokens, matrices = np.empty((64, 512), np.float16), np.empty((8, 512, 256), np.float16)
    with pytest.raises(gm.UnsupportedError, match="sm_80"):
        gm.grouped_gemm.plan(tokens, matrices, GROUPS, chip="a100")
    with pytest.raises(gm.UnsupportedError, match=r"8-bit floats need compute capability 8\.9"):
        gm.quantize.plan(tokens, chip="a100")
    empty = gm.grouped_gemm.plan(tokens[:0], matrices, np.zeros(8, np.int32), chip="h100")
    assert (empty.kernel, empty.executor, empty.device) == ("memset", "gpu", "H100 SXM 80 GB")
    with pytest.raises(gm.ArgumentError, match="leave chip out"):
        empty.execute()
    with pytest.raises(gm.ArgumentError, match=r"but executor='cpu' is given; leave one of them out$"):
        gm.quantize.plan(tokens, chip="h100", executor="cpu")


@pytest.mark.parametrize(
    ("types", "options", "message"),
    [
        (("float32", "float32"), {"c": "int16"}, "c is int16, which has no .*; convert c with astype first$"),
        (("float64", "float64"), {"c": "int64"}, "c is int64, which has no GPU kernel"),
        (("uint8", "int8"), {}, "a is uint8, which has no GPU kernel"),
        (("int8", "int8"), {"out_dtype": "int16"}, "out_dtype is int16, which has no GPU .*; choose one of these$"),
    ],
    ids=str,
)
def test_what_has_no_kernel_is_named(types, options, message):
    a, b = (np.ones((16, 16), one) for one in types)
    given = options | {"c": np.ones((16, 16), options["c"]), "beta": 1} if "c" in options else options
    with pytest.raises(gm.DTypeError, match=message):
        gm.gemm.plan(a, b, chip="h100", **given)


def test_the_virtual_gpu_runs_them_as_on_the_chip():
    pytest.importorskip("cutlass", reason="the kernel compiler is not installed")
    read = list(plans_of_other_functions(chip="h100"))
    run = list(plans_of_other_functions(chip="h100", executor="vgpu"))
    assert [(x.kernel, x.config, x.executor) for x in run] == [(x.kernel, x.config, "vgpu") for x in read]
    tokens = np.random.default_rng(7).standard_normal((64, 512)).astype(np.float32)
    values, scales = gm.quantize.plan(tokens, chip="h100", executor="vgpu").execute()
    here, those = gm.quantize(tokens, executor="cpu")
    assert np.array_equal(values.view(np.uint8), here.view(np.uint8))
    assert np.array_equal(scales, those)
    with pytest.raises(gm.ArgumentError, match=r"A100 .* is sm_80, but the virtual GPU is sm_90a"):
        gm.quantize.plan(tokens, chip="a100", executor="vgpu")


def test_a_kernel_by_name():
    a, b = operands((1000, 1000, 1000), "bfloat16")
    plan = gm.matmul.plan(a, b, chip="h100", kernel="hopper_gemm[3]")
    assert (plan.kernel, plan.config) == ("hopper_gemm", HOPPER_GEMM.configs[3].as_dict())
    assert plan.predicted_us >= gm.matmul.plan(a, b, chip="h100").predicted_us
    with pytest.raises(gm.UnsupportedError, match=r"^float64_gemm: A is bfloat16; .*, leave kernel out, or give"):
        gm.matmul.plan(a, b, chip="h100", kernel="float64_gemm")


def test_nothing_runs():
    a, b = operands((64, 64, 64), "float64")
    plan = gm.matmul.plan(a, b, chip="h100", precision="ozaki")
    for run in (plan.execute, plan.decision):
        with pytest.raises(
            gm.ArgumentError, match="this plan is for H100 SXM 80 GB, which chip= names; leave chip out"
        ):
            run()


@pytest.mark.parametrize("executor", ["cpu", "vgpu"])
def test_the_environment_is_of_calls_here(executor, monkeypatch):
    monkeypatch.setenv("GEMMULE_EXECUTOR", executor)
    a, b = operands((64, 64, 64), "float64")
    assert gm.matmul.plan(a, b, chip="h100").executor == "gpu"


def test_what_is_refused():
    a, b = operands((64, 64, 64), "float32")
    with pytest.raises(gm.ArgumentError, match=r"chip 'h1000' is not in the table; did you mean H100 SXM 80 GB"):
        gm.matmul.plan(a, b, chip="h1000")
    with pytest.raises(
        gm.ArgumentError, match=r"chip 'l40s' is not in the table; choose one of B200, .* A100 SXM 80 GB$"
    ):
        gm.matmul.plan(a, b, chip="l40s")
    with pytest.raises(gm.UnsupportedError, match=r"^chip='v100': no kernels are compiled for a V100.*one of B200, "):
        gm.matmul.plan(a, b, chip="v100")
    with pytest.raises(gm.ArgumentError, match=r"^chip=3 is not a name; give one, as chip='h100'$"):
        gm.matmul.plan(a, b, chip=3)
    with pytest.raises(gm.ArgumentError, match=r"but executor='cpu' is given; leave one of them out$"):
        gm.matmul.plan(a, b, chip="h100", executor="cpu")
    with pytest.raises(gm.ArgumentError, match=r"executor='gpux' is not known"):
        gm.matmul.plan(a, b, chip="h100", executor="gpux")
    with pytest.raises(
        gm.ArgumentError, match=r"A100 .* is sm_80, but the virtual GPU is sm_90a; set GEMMULE_VGPU_ARCH"
    ):
        gm.matmul.plan(a, b, chip="a100", executor="vgpu")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_virtual_gpu_chooses_as_the_chip_that_is_named(dtype):
    for shape in SHAPES:
        a, b = operands(shape, dtype)
        there, virtual = gm.matmul.plan(a, b, chip="h100"), gm.matmul.plan(a, b, chip="h100", executor="vgpu")
        assert (virtual.kernel, virtual.config) == (there.kernel, there.config)
        assert (virtual.executor, virtual.predicted_us) == ("vgpu", None)
        assert virtual.chosen_by != "cost" or virtual.chosen_from == "as on H100 SXM 80 GB"


def test_every_chip_with_kernels_plans():
    a, b = operands((256, 256, 256), "float16")
    planned = 0
    for chip in CHIPS:
        if chip.capability >= (8, 0):
            assert gm.matmul.plan(a, b, chip=chip.name).device == chip.name
            planned += 1
    assert planned >= 5


def test_a_transpose_in_tiles_or_blocks_has_a_predicted_time_on_a_chip_with_an_h200s_memory():
    tiles, blocks = np.zeros((1000, 768), np.float32), np.zeros((77, 65, 11, 33), np.int16)
    for plan_on in (
        lambda chip: gm.matrix_transpose.plan(tiles, chip=chip),
        lambda chip: gm.transpose.plan(blocks, (3, 1, 0, 2), chip=chip),
    ):
        plan = plan_on("h200")
        assert plan.chosen_by == "cost"
        assert plan.predicted_us > 1e6 * plan.bound_s
        assert "; expected " in str(plan).splitlines()[0]
        assert plan_on("h100").predicted_us is None


@pytest.mark.parametrize("precision", ["ieee", "ozaki"])
def test_complex_plans_count_operations_of_real_numbers(precision):
    a = np.zeros((256, 512), np.complex128)
    plan = gm.matmul.plan(a, np.zeros((512, 128), np.complex128), chip="h100", precision=precision)
    assert plan.flop == 8 * 256 * 512 * 128


def test_an_empty_result_has_no_predicted_time():
    empty = gm.matmul.plan(np.zeros((0, 1000), np.float16), np.zeros((1000, 3), np.float16), chip="h100")
    assert empty.predicted_us is None


def test_a_config_that_is_never_chosen_has_no_time():
    a = np.zeros((4096, 4096), np.float16)
    plan = gm.matmul.plan(a, a, chip="h200", kernel=f"hopper_gemm[{len(HOPPER_GEMM.configs) - 1}]")
    assert (plan.kernel, plan.predicted_us) == ("hopper_gemm", None)
    assert "inf" not in str(plan).splitlines()[0]
