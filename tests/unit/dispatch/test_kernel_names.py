"""Which kernels, configs and sizes words stand for, and what is said of words that stand for none."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError, GemmuleError
from gemmule.core.gpu_rates import H100_RATES
from gemmule.core.name_suggestions import unknown_name
from gemmule.core.problem import contiguous_gemm
from gemmule.dispatch.former_names import KERNELS
from gemmule.dispatch.kernel_names import on_gpu, only_choice, parse_kernels
from gemmule.dispatch.registry import REGISTRY
from gemmule.kernels.simt.reference.spec import SPEC as GEMM_REFERENCE
from gemmule.kernels.transpose.reference.spec import SPEC as TRANSPOSE_REFERENCE
from gemmule.lab.products import LAYOUTS, as_matrix, gemm_problem, output_type, random_inputs
from gemmule.lab.sizes import SIZE_SETS, parse_sizes
from gemmule.lab.transposes import transpose_of
from support.fakes.bench import CONFIGS, kernel_spec, only

ARCH = Arch(9, 0, True)
FLOAT32, FLOAT64 = (gemm_problem(4096, 4096, 4096, dtype, dtype, "nn") for dtype in ("float32", "float64"))
RUNGS = [kernel_spec("g01_naive", only("float32")), kernel_spec("g07_cp_async", only("float32"))]
DOUBLES = [kernel_spec("d01_shared_ab", only("float64"), CONFIGS[:2])]
SPECS = [*RUNGS, *DOUBLES, GEMM_REFERENCE, TRANSPOSE_REFERENCE]
LISTED = "`gemmule info --kernels --json` lists all"
LADDER = ("g01_naive", "g07_cp_async", "d01_shared_ab")


def chosen(*words, probe=FLOAT32, arch=ARCH):
    choices = parse_kernels(words, probe, arch, SPECS, LADDER)
    return [(choice.spec.name, CONFIGS.index(choice.config) if choice.config in CONFIGS else -1) for choice in choices]


def test_the_ladder_is_the_rungs_for_the_type():
    assert chosen("ladder") == [("g01_naive", 0), ("g07_cp_async", 0)]
    assert chosen("ladder", probe=FLOAT64) == [("d01_shared_ab", 0), ("d01_shared_ab", 1)]
    assert [name for name, _ in chosen("ladder", arch=None)] == list(LADDER)


def test_all_is_every_product_kernel_and_no_transpose():
    assert [name for name, _ in chosen("all")] == [*LADDER, "gemm_reference"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["g07_cp_async"], [0]),
        (["g07_cp_async[2]"], [2]),
        (["g07_cp_async[tile_m=128]"], [1, 2]),
        (["g07_cp_async[tile_m=128,stages=3]"], [2]),
        (["g07_cp_async[ stages = 3 ]"], [2]),
        (["g07_cp_async [tile_m=128 stages=3]"], [2]),
        (["g07_cp_async [tile_m = 128, stages=3],g07_cp_async[0]"], [2, 0]),
        (["g07_cp_async[*]"], [0, 1, 2]),
        (["g07_cp_async[1],g07_cp_async", "g07_cp_async[*]"], [1, 0, 2]),
    ],
)
def test_a_name_may_carry_a_config(words, expected):
    assert chosen(*words) == [("g07_cp_async", index) for index in expected]


def test_named_kernels_run_as_calls_run_them_on_a_gpu():
    """A persistent kernel of 132 CTAs on 114 SMs would take a second wave for the last ones."""
    rates = dataclasses.replace(H100_RATES, multiprocessors=114)
    found = on_gpu(parse_kernels(["h05_persistent,hopper_gemm[0],gemm_reference"], FLOAT32, None), rates, ARCH)
    assert [choice.gpu for choice in found] == [rates] * 3
    assert [choice.config.as_dict().get("ctas") for choice in found] == [114, 114, None]
    # A number that is given stays.
    (given,) = on_gpu(
        parse_kernels(["hopper_gemm[ctas=64,tile_m=128,tile_n=128,stages=4]"], FLOAT32, None), rates, ARCH
    )
    assert given.config.ctas == 64


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_120a"])
def test_the_product_of_copies_is_chosen_for_the_gpu_by_a_name_too(arch):
    problem, gpu = contiguous_gemm(48, 64, 8192, ("int8", "float16", "float16")), Arch.parse(arch)
    (found,) = on_gpu(parse_kernels(["gemm_upcast"], problem, gpu), H100_RATES, gpu)
    then = found.next_kernel(problem)
    assert then.spec.why_not(then.problem, gpu, then.config) is None
    assert found.gpu.arch == gpu


@pytest.mark.parametrize("multiprocessors", [114, 132])
def test_configs_are_taken_as_plans_print_them(multiprocessors):
    for spec in REGISTRY:
        for config in {spec.default, spec.configs[-1]}:
            given = config.on(multiprocessors)
            found = only_choice(f"{spec.name} [{given}]", REGISTRY)
            assert (found.spec, found.config) == (spec, given)


def test_an_unregistered_config_says_where_fields_have_their_defaults():
    word = "hopper_gemm[stages=4 pingpong=1 tile_n=256]"
    with pytest.raises(ArgumentError, match=r"registers \(fields that are not given have their defaults\)$"):
        only_choice(word, REGISTRY)


def test_words_mix_and_nothing_comes_twice():
    assert chosen("gemm_reference,g07_cp_async[1]", "ladder") == [
        ("gemm_reference", -1), ("g07_cp_async", 1), ("g01_naive", 0), ("g07_cp_async", 0),
    ]  # fmt: skip
    assert chosen("ladder,gemm_reference") == [*chosen("ladder"), ("gemm_reference", -1)]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("g07_cp_asinc", "kernel 'g07_cp_asinc' is not known; did you mean g07_cp_async"),
        ("G01", "did you mean g01_naive"),
        ("naive", "did you mean g01_naive"),
        ("ladr", "did you mean ladder"),
        ("zzz", "kernel 'zzz' is not known; `gemmule info --kernels` lists all"),
        ("transpose_reference", "transpose_reference is a transpose; `gemmule bench transpose` measures it"),
        ("g07_cp_async[9]", f"has no config [9]; give a number from 0 to 2, or fields such as tile_m=64; {LISTED}"),
        ("g07_cp_async[fast]", f"[fast]; give a number from 0 to 2, or fields such as tile_m=64; {LISTED}"),
        ("g07_cp_async[tile_m=x]", "has no config [tile_m=x]; give a number from 0 to 2"),
        (f"g07_cp_async[{'9' * 5000}]", "give a number from 0 to 2"),
        ("gemm_reference[3]", "has no config [3]; give 0 (it has one), or fields such as"),
        ("g07_cp_async[tile=1]", "has no config [tile=1]; its configs have no field 'tile'; they have tile_m, stages"),
        ("g07_cp_async[tile_m=64,tile_m=128]", "it names tile_m twice; give it once"),
        (
            "g07_cp_async[tile_m=64,stages=3]",
            f"nearest are [0] tile_m=64 stages=2, [2] tile_m=128 stages=3, [1] tile_m=128 stages=2; {LISTED}",
        ),
        ("g07_cp_async[tile_m=100,stages=2]", f"[tile_m=100,stages=2]; tile_m is one of 64, 128; {LISTED}"),
        (f"g07_cp_async[tile_m={'9' * 400}]", "tile_m is one of 64, 128; "),
        ("gemm_reference[tile_k=5]", "; tile_k is 16 in all of them; "),
        ("g07_cp_async[1", "mind the brackets"),
        ("g07_cp_async[1]x", "mind the brackets"),
        ("", "does not name kernels"),
        ("g7", "kernel 'g7' is not known; did you mean g07_cp_async"),
        ("G1_naive_x", "did you mean g01_naive"),
        ("hopper_gemm_line_classes", "runs only after others; give the one whose plan lists it"),
        ("ladder[1]", "'ladder' takes no config"),
        ("all[*]", "'all' takes no config"),
    ],
)
def test_unknown_kernels_and_configs_are_told_the_near_ones(word, message):
    with pytest.raises(ArgumentError) as refused:
        chosen(word)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["h01_mma_sync", "h09_production[0]"])
def test_a_former_name_of_a_kernel_is_answered_by_the_current_one(name):
    former = name.partition("[")[0]
    with pytest.raises(ArgumentError, match=f"^kernel '{former}' is now '{KERNELS[former]}'; give that name$"):
        parse_kernels([name], FLOAT32, ARCH)


def test_a_kernel_of_the_other_operation_is_told_its_command():
    with pytest.raises(ArgumentError, match=r"^transpose_tiled is a transpose; `gemmule bench transpose`"):
        parse_kernels(["simt_gemm,transpose_tiled"], FLOAT32, ARCH)
    with pytest.raises(ArgumentError, match=r"^hopper_gemm is a product; `gemmule bench gemm` measures it$"):
        parse_kernels(["hopper_gemm[0]"], transpose_of(40, 24, 4), None)


@pytest.mark.parametrize("name", ["h01", "h1", "h01_mma"])
def test_the_number_of_a_former_name_is_answered_by_the_current_one(name):
    with pytest.raises(ArgumentError, match=f"^kernel '{name}' is not known; did you mean mma_sync_gemm"):
        parse_kernels([name], FLOAT32, ARCH)


def test_the_sources_sizes():
    sizes = parse_sizes(["source"])
    assert len(sizes) == 15
    assert sizes[0] == (128, 128, 1024)
    assert sizes[-1] == (16384, 16384, 1024)
    assert {(m == n, k) for m, n, k in sizes} == {(True, 1024)}


def test_sizes_mix_and_none_comes_twice():
    assert parse_sizes(["64,32,16", "source", "64,32,16", "128,128,1024"]) == ((64, 32, 16), *parse_sizes(["source"]))
    assert parse_sizes(["square", "odd"]) == SIZE_SETS["square"][1] + SIZE_SETS["odd"][1]


def test_sets_of_sizes_take_commas():
    assert parse_sizes(["source,square"]) == parse_sizes(["source", "square"])
    assert parse_sizes(["odd, llm,64,32,16"]) == parse_sizes(["odd", "llm", "64,32,16"])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("source,sqare", "size 'sqare' is not known; did you mean square"),
        ("sauce", "size 'sauce' is not known; did you mean source?"),
        ("big", "choose one of source, square, llm, odd, or any M,N,K"),
        ("1,2", "any M,N,K in whole numbers from 1, such as 4096,4096,1024"),
        ("512", "size '512' is not known; choose one of source, square, llm, odd, or any M,N,K in whole numbers"),
        ("5x12", "size '5x12' is not known; choose one of source, square, llm, odd, or any M,N,K in whole numbers"),
        ("1,2,3,4", "any M,N,K"),
        ("0,2,3", "from 1"),
        ("-1,2,3", "any M,N,K"),
        ("1,2,x", "any M,N,K"),
        ("", "size '' is not known"),
    ],
)
def test_unknown_sizes_are_told_the_near_ones(word, message):
    with pytest.raises(ArgumentError) as refused:
        parse_sizes([word])
    assert message in str(refused.value)


def test_output_types():
    assert (output_type("int8", None), output_type("int8", "int8")) == ("int32", "int8")
    assert (output_type("bfloat16", None), output_type("bfloat16", "float32")) == ("bfloat16", "float32")
    with pytest.raises(GemmuleError, match="dtype 'float31' is not known; did you mean float32"):
        output_type("float31", None)
    with pytest.raises(GemmuleError, match="output dtype 'int23' is not known; did you mean int32"):
        output_type("int8", "int23")


def test_near_names_ignore_case_and_find_words():
    chips = ["h100", "a100", "b200", "l40s"]
    assert unknown_name("chip", "H10", chips).endswith("; did you mean h100?")
    assert unknown_name("chip", "100", chips).endswith("; did you mean h100 or a100?")
    assert unknown_name("chip", "H10", ["h100", "a100"]).endswith("; choose one of h100, a100")
    assert unknown_name("x", "zz", ["aa", "bb"]) == "x 'zz' is not known; choose one of aa, bb"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 4, 1), (4, 1, 3), (1, 1, 1)], ids=str)
def test_inputs_lie_as_the_layout_says(layout, shape):
    m, n, k = shape
    problem = gemm_problem(m, n, k, "float32", "float32", layout)
    inputs = random_inputs(problem, 0)
    for name, rows, cols in (("a", m, k), ("b", k, n)):
        stored, matrix = inputs[name], getattr(problem, name)
        assert stored.flags.c_contiguous
        values, flat = as_matrix(stored, matrix), stored.reshape(-1)
        assert values.shape == (rows, cols)
        for i in range(rows):
            for j in range(cols):
                assert values[i, j] == flat[i * matrix.row_stride + j * matrix.col_stride]
    if min(shape) > 1:
        assert problem.layout == layout


def test_inputs_repeat_with_the_seed_and_differ_without():
    problem = gemm_problem(1500, 1100, 1000, "float32", "float32", "nn")
    one, again, other = (random_inputs(problem, seed) for seed in (1, 1, 2))
    assert (one["a"] == again["a"]).all()
    assert (one["a"] != other["a"]).mean() > 0.99
    assert one["a"].std() == pytest.approx(1, abs=0.01)
    assert len(set(one["a"].reshape(-1)[:: 1 << 18].tolist())) > 3  # the threads' parts differ
    whole = random_inputs(gemm_problem(500, 500, 500, "int8", "int32", "nn"), 1)["a"]
    assert (whole.min(), whole.max()) == (-128, 127)
