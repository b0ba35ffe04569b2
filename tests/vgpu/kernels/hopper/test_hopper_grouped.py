"""hopper_grouped on the virtual GPU, all checks on: groups along M, N and K, random ends, layouts, clusters."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import gemmule as gm
from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, FLOAT32
from gemmule.core.grouped_problem import GroupedProblem
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.grouped.config import COUNTER_WORDS, FOR_FLOAT8
from gemmule.kernels.hopper.grouped.spec import SPEC
from gemmule.kernels.parts.grouped_tiles import MAX_GROUPS
from gemmule.kernels.parts.schedulers.stream_k_workspaces import READY
from gemmule.vgpu import CheckError, Options, launch
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from support.oracle import assert_product, poisoned
from support.stray_writes import nothing_strays
from support.vgpu import grouped_products as products
from support.vgpu.grouped_products import ENDS, EXTENT, expected, operand
from support.vgpu.kernel_products import matrix

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: One of each: small tiles in ping-pong, cooperative warpgroups, and a cluster along each dimension. With few columns
#: they compile fast; slow tests run every config.
SMALL = dataclasses.replace(min(SPEC.configs, key=lambda config: config.tile_elements), ctas=3)
FEW_COLUMNS = [dataclasses.replace(config, tile_n=64) for config in SPEC.configs]
COOPERATIVE = next(config for config in FEW_COLUMNS if not config.pingpong and config.cluster_size == 1)
COOPERATIVE_8_BIT = next(x for x in SPEC.configs if not x.pingpong and x.cluster_size == 1 and x.tile_n == 192)
OVER_ROWS = next(config for config in FEW_COLUMNS if config.cluster_m == 2)
OVER_COLUMNS = next(config for config in FEW_COLUMNS if config.cluster_n == 2 and config.pingpong)
#: A ping-pong tile whose rows two CTAs share.
SQUARE_OVER_COLUMNS = next(x for x in SPEC.configs if x.cluster_n == 2 and x.pingpong and x.tile_m == x.tile_n)


#: Of A, B and D, of 3 rows that name one of 2 matrices.
SHAPES_OF_ROWS = ((3, 64), (2, 64, 64), (3, 64))


def multiply(rng, axis, ends, config=SMALL, **changes):
    products.multiply(rng, axis, ends, Choice(SPEC, config), **changes)


@pytest.mark.parametrize("axis", "mnk")
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_groups(axis, ends, rng):
    multiply(rng, axis, ends)


@pytest.mark.parametrize("axis", "mnk")
def test_random_ends(axis, rng):
    for groups in (2, 40):
        multiply(rng, axis, tuple(np.sort(rng.integers(0, EXTENT + 1, groups)).tolist()), sizes=(24, 40))


#: Each is compiled anew: every config along one axis, and each axis with one of the clusters.
SHARED = [
    pytest.param(axis, config, id=f"{axis}-{name}", marks=[] if quick == axis else [pytest.mark.slow])
    for axis in "mk"
    for name, config, quick in (
        ("cooperative", COOPERATIVE, "k"),
        ("rows", OVER_ROWS, "k"),
        ("columns", OVER_COLUMNS, "m"),
        ("square", SQUARE_OVER_COLUMNS, "m"),
    )
]


@pytest.mark.parametrize(("axis", "config"), SHARED)
def test_warpgroups_and_clusters_that_share_a_tile(axis, config, rng):
    config = dataclasses.replace(config, ctas=4)
    multiply(rng, axis, (5, 5, 280, 281, 400), config, sizes=(136, 264), extent=408)


def test_rows_of_an_odd_number_of_16_bytes(rng):
    """The last rows of epilogue tiles that groups of 62 and 63 rows end in are written by threads."""
    config = dataclasses.replace(FOR_FLOAT8, ctas=3)
    multiply(rng, "m", (62, 125, 152), config, sizes=(72, 216), kinds=("row", "row"))


@pytest.mark.parametrize(
    ("config", "epilogue"),
    [
        (SMALL, None),
        (dataclasses.replace(SMALL, dynamic=1), "plus one"),
        pytest.param(OVER_COLUMNS, None, marks=pytest.mark.slow),
        (COOPERATIVE, "swiglu"),
    ],
    ids=["ping-pong", "dynamic", "columns", "cooperative"],
)
def test_rows_that_name_their_matrices(config, epilogue, rng):
    """A row of NaN whose number is none of a matrix is zero, whatever the epilogue is; other matrices hold NaN."""
    epilogue, columns = (
        (lambda acc: acc + 1) if epilogue == "plus one" else epilogue,
        136 * (1 + (epilogue == "swiglu")),
    )
    numbers, none = np.array([5, 0, 5, 7, -1, 2, 2**31 - 1, -(2**31)], np.int32), [3, 4, 6, 7]
    a = operand(rng, BFLOAT16, (len(numbers), 72), "row")
    b = operand(rng, BFLOAT16, (7, 72, columns), "col")
    b[[1, 3, 4, 6]], a[none] = np.nan, np.nan
    d = poisoned(BFLOAT16, (len(numbers), 136))
    # The host refuses these numbers; a kernel has what is on the device.
    numbered = np.where((numbers >= 0) & (numbers < 7), numbers, 0).astype(np.int32)
    plan = gm.grouped_gemm.plan(a, b, matrices=numbered, epilogue=epilogue, out=d, executor="vgpu")
    arrays = {"a": a, "b": b[..., :136], "matrices": numbers, "d": d, "u": b[..., 136:]}
    wanted = {name: arrays[name] for name in plan.problem.operands()}
    with nothing_strays(d):
        run_kernel(plan.problem, Choice(SPEC, dataclasses.replace(config, ctas=4)), wanted, Options(checks=True))
    exact = gm.grouped_gemm(a.astype(np.float64), b.astype(np.float64), matrices=numbered, epilogue=epilogue)
    exact[none] = 0
    np.testing.assert_allclose(d.astype(np.float64), exact, rtol=2**-8, atol=1e-4)
    assert np.abs(exact).max() > 1


def test_random_rows_and_numbers(rng):
    """Numbers may be none of a matrix; the rows that have them, and what is between rows, hold NaN."""
    for _ in range(4):
        m, n, k, groups = (int(rng.integers(1, most)) for most in (10, 40, 150, 9))
        a, b = (rng.standard_normal(shape).astype(BFLOAT16.numpy()) for shape in ((m, k), (groups, n, k)))
        # Rows of K begin at multiples of 16 bytes.
        a, b = (np.pad(x, (*[(0, 0)] * (x.ndim - 1), (0, 8 - k % 8)), constant_values=np.nan)[..., :k] for x in (a, b))
        numbers = rng.integers(-1, groups + 1, m).astype(np.int32)
        there = (numbers >= 0) & (numbers < groups)
        a[~there] = np.nan
        d = poisoned(FLOAT32, (m, 8 * n))[:, :n]
        numbered = np.where(there, numbers, 0).astype(np.int32)
        plan = gm.grouped_gemm.plan(a, b.swapaxes(1, 2), matrices=numbered, out=d, executor="vgpu")
        arrays = {"a": a, "b": b.swapaxes(1, 2), "matrices": numbers, "d": d}
        with nothing_strays(d):
            run_kernel(plan.problem, Choice(SPEC, SMALL), arrays, Options(checks=True))
        assert not d[~there].any()
        for row in np.flatnonzero(there):
            assert_product(d[row : row + 1], a[row : row + 1], b[numbers[row]].T)


def test_rows_of_a_cluster_have_one_matrix():
    problem = GroupedProblem("row", 3, 64, 64, 2, *(matrix(np.zeros(x, BFLOAT16.numpy())) for x in SHAPES_OF_ROWS))
    reason = SPEC.why_not(problem, virtual_arch(), OVER_ROWS)
    assert reason is not None
    assert "cluster_m must be 1" in reason


def test_as_many_groups_as_there_is_room_for(rng):
    ends = (*[3] * (MAX_GROUPS - 2), 70, 140)
    multiply(rng, "m", ends, dataclasses.replace(COOPERATIVE, ctas=3), sizes=(24, 40))


DYNAMIC = [
    pytest.param(axis, config, id=f"{axis}-{name}", marks=[] if quick == axis else [pytest.mark.slow])
    for axis in "mk"
    for name, config, quick in (("ping-pong", SMALL, "m"), ("cooperative", COOPERATIVE, "k"))
]


@pytest.mark.parametrize(("axis", "config"), DYNAMIC)
def test_tiles_that_ctas_take_as_they_get_to_them(axis, config, rng):
    config = dataclasses.replace(config, dynamic=1, ctas=3)
    multiply(rng, axis, (5, 5, 280, 281, 400), config, sizes=(136, 264), extent=408)


class Counted:
    """A product whose CTAs take tiles by the counter; its memory is the caller's."""

    def __init__(self, rng, config):
        a, b = operand(rng, BFLOAT16, (EXTENT, 24), "row"), operand(rng, BFLOAT16, (4, 24, 40), "col")
        self.d, ends = poisoned(BFLOAT16, (EXTENT, 40)), np.array((3, 3, 70, 150), np.int32)
        self.exact = expected("m", a, b, self.d, ends)
        self.arrays = {"a": a, "b": b, "offsets": ends}
        problem = GroupedProblem("m", EXTENT, 40, 24, 4, matrix(a), matrix(b), matrix(self.d))
        self.recipe = SPEC.launch(problem, config)
        self.ptx = artifact_for(SPEC, config, SPEC.signature(problem, config), virtual_arch()).ptx

    def run(self, ptx, words):
        d = self.d.copy()
        launch(ptx, self.recipe, {**self.arrays, "d": d, "counter": words}, options=Options(checks=True))
        np.testing.assert_array_equal(d.astype(np.float32), self.exact)


#: Fewer CTAs than tiles.
COUNTED = [dataclasses.replace(one, dynamic=1, ctas=2) for one in (SMALL, COOPERATIVE)]


@pytest.mark.parametrize("config", COUNTED, ids=["ping-pong", "cooperative"])
def test_more_tiles_by_the_counter_than_slots(config, rng):
    ends = tuple(np.sort(rng.integers(0, EXTENT + 1, 30)).tolist())
    multiply(rng, "m", ends, config, sizes=(24, 40))


@pytest.mark.parametrize("config", COUNTED, ids=["ping-pong", "cooperative"])
def test_the_counter_needs_no_zeros(config, rng):
    """Each launch finds what the one before it left in the memory, the first anything; none leaves the flag set."""
    subject, words = Counted(rng, config), rng.integers(0, 2**63, COUNTER_WORDS, np.uint64)
    for _ in range(3):
        subject.run(subject.ptx, words)
        assert words[0] != READY


@pytest.mark.parametrize("config", COUNTED, ids=["ping-pong", "cooperative"])
@pytest.mark.parametrize(
    ("order", "weaker"), [("st.release.gpu", "st.relaxed.gpu"), ("ld.acquire.gpu", "ld.relaxed.gpu")]
)
def test_what_orders_the_counter_is_missed(config, order, weaker, rng):
    subject, words = Counted(rng, config), np.zeros(COUNTER_WORDS, np.uint64)
    assert order in subject.ptx
    with pytest.raises(CheckError, match="race"):
        subject.run(subject.ptx.replace(order, weaker), words)


@pytest.mark.parametrize(
    ("axis", "kinds", "dtype", "out"),
    [
        ("m", ("row", "row"), BFLOAT16, FLOAT32),
        pytest.param("m", ("row", "col"), FLOAT16, FLOAT16, marks=pytest.mark.slow),
        ("k", ("col", "row"), FLOAT16, FLOAT32),
        ("n", ("col", "col"), BFLOAT16, BFLOAT16),
    ],
)
def test_types_and_layouts(axis, kinds, dtype, out, rng):
    multiply(rng, axis, (3, 3, 70, 140), dtype=dtype, out=out, kinds=kinds)


def test_8_bit_floats(rng):
    a = operand(rng, FLOAT8_E4M3, (EXTENT, 144), "row")
    b = operand(rng, FLOAT8_E5M2, (4, 144, 40), "col")
    ends = np.array((3, 3, 70, 140), np.int32)
    plan = gm.grouped_gemm.plan(a, b, ends, out_dtype="float32", precision="float8", executor="vgpu")
    d = poisoned(FLOAT32, (EXTENT, 40))
    arrays = {"a": a, "b": b, "offsets": ends, "d": d}
    with nothing_strays(d):
        run_kernel(plan.problem, Choice(SPEC, SMALL), arrays, Options(checks=True))
    np.testing.assert_array_equal(d, expected("m", a, b, d, ends))


@pytest.mark.parametrize(
    ("config", "of_all", "biased"), [(SMALL, False, True), (COOPERATIVE_8_BIT, True, False)], ids=["lines", "all"]
)
def test_scales_of_rows_and_columns(config, of_all, biased, rng):
    """Random ends with empty groups; scales next to the rows of other groups must not be taken for theirs."""
    groups, (x, y) = 6, (144, 48)
    ends = np.sort(rng.integers(0, EXTENT - 8, groups)).astype(np.int32)
    ends[2] = ends[1]
    a = operand(rng, FLOAT8_E4M3, (EXTENT, x), "row")
    b = operand(rng, FLOAT8_E4M3, (groups, x, y), "col")
    scale_a, scale_b = (
        np.exp2(rng.integers(-3, 4, shape)).astype(np.float32)
        for shape in (((1,), (1,)) if of_all else ((EXTENT, 1), (groups, 1, y)))
    )
    bias = rng.integers(-4, 5, (groups, y)).astype(BFLOAT16.numpy()) if biased else None
    d = poisoned(BFLOAT16, (EXTENT, y))
    plan = gm.grouped_gemm.plan(a, b, ends, scale_a=scale_a, scale_b=scale_b, bias=bias, out=d, executor="vgpu")
    arrays = {"a": a, "b": b, "offsets": ends, "d": d}
    inputs = [*([bias] if biased else []), scale_b, scale_a]
    arrays |= {f"e{place}": x for place, x in enumerate(inputs)}
    with nothing_strays(d):
        run_kernel(plan.problem, Choice(SPEC, dataclasses.replace(config, ctas=3)), arrays, Options(checks=True))
    scaled = a.astype(np.float32) * scale_a, b.astype(np.float32) * scale_b
    wanted = expected("m", *scaled, poisoned(FLOAT32, d.shape), ends)
    for group, (start, end) in enumerate(itertools.pairwise((0, *ends))):
        wanted[start:end] += 0 if bias is None else bias[group].astype(np.float32)
    np.testing.assert_array_equal(d.astype(np.float32), wanted.astype(d.dtype).astype(np.float32))


@pytest.mark.parametrize(
    ("config", "epilogue", "columns"),
    [
        pytest.param(COOPERATIVE, "swiglu", 40, marks=pytest.mark.slow),
        (SMALL, "swiglu", 40),
        (SMALL, "relu", 71),
    ],
    ids=["cooperative", "ping-pong", "element by element"],
)
def test_a_bias_and_an_epilogue(config, epilogue, columns, rng):
    """What is beyond the last end is zero even so."""
    ends, gated = np.array((0, 3, 3, 70, 140), np.int32), epilogue == "swiglu"
    a = operand(rng, BFLOAT16, (EXTENT, 24), "row")
    b = operand(rng, BFLOAT16, (5, 24, columns * (1 + gated)), "col")
    bias = rng.standard_normal((5, b.shape[-1])).astype(np.float32)
    d = poisoned(FLOAT32, (EXTENT, columns))
    plan = gm.grouped_gemm.plan(a, b, ends, bias=bias, epilogue=epilogue, out=d, executor="vgpu")
    names = {"bias": bias, "bias (of the gates)": bias[:, :columns], "bias (of up)": bias[:, columns:]}
    arrays = {"a": a, "b": b[..., :columns], "offsets": ends, "d": d, "u": b[..., columns:]}
    roles = ["bias (of up)", "bias (of the gates)"] if gated else ["bias"]
    arrays |= {f"e{place}": names[role] for place, role in enumerate(roles)}
    wanted = {name: arrays[name] for name in plan.problem.operands()}
    with nothing_strays(d):
        run_kernel(plan.problem, Choice(SPEC, dataclasses.replace(config, ctas=3)), wanted, Options(checks=True))
    exact = gm.grouped_gemm(a.astype(np.float64), b.astype(np.float64), ends, bias=bias.astype(np.float64),
                            epilogue=epilogue)  # fmt: skip
    np.testing.assert_allclose(d, exact, rtol=1e-5, atol=1e-4)
    assert (d[140:] == 0).all()


@pytest.mark.parametrize("axis", "mk")
def test_results_whose_rows_begin_anywhere(axis, rng):
    """TMA cannot store 71 columns: threads write element by element."""
    kinds = ("row", "col") if axis == "m" else None
    groups, ends, x, y = 4, (3, 3, 70, 140), 72, 71
    b_shape, d_shape = ((groups, x, y), (EXTENT, y)) if axis == "m" else ((EXTENT, 72), (groups, x, y))
    a = operand(rng, BFLOAT16, (EXTENT, x) if axis == "m" else (x, EXTENT), kinds[0] if kinds else "col")
    b = operand(rng, BFLOAT16, b_shape, kinds[1] if kinds else "row")[..., :y]
    d = poisoned(BFLOAT16, d_shape)
    problem = GroupedProblem(axis, d.shape[-2], y, a.shape[-1], groups, matrix(a), matrix(b), matrix(d))
    assert SPEC.why_not(problem, virtual_arch(), SMALL) is None
    arrays = {"a": a, "b": b, "offsets": np.array(ends, np.int32), "d": d}
    with nothing_strays(d):
        run_kernel(problem, Choice(SPEC, SMALL), arrays, Options(checks=True))
    np.testing.assert_array_equal(d.astype(np.float32), expected(axis, a, b, d, ends))


@pytest.mark.parametrize("axis", "mnk")
def test_ends_past_the_extent_touch_nothing_beyond(axis, rng):
    """Nobody sees offsets on a GPU before the kernel does: they are cut off."""
    found = {}
    for ends in ((3, 70, 1000, 999_999, 2**31 - 1), (3, 70, EXTENT, EXTENT, EXTENT)):
        seed = np.random.default_rng(7)
        a_shape, b_shape, d_shape = {
            "m": ((EXTENT, 24), (5, 24, 40), (EXTENT, 40)),
            "n": ((5, 24, 40), (40, EXTENT), (24, EXTENT)),
            "k": ((24, EXTENT), (EXTENT, 40), (5, 24, 40)),
        }[axis]
        kinds = {"m": ("row", "col"), "n": ("row", "col"), "k": ("col", "row")}[axis]
        a, b = (operand(seed, BFLOAT16, shape, kind) for shape, kind in zip((a_shape, b_shape), kinds, strict=True))
        d = poisoned(BFLOAT16, d_shape)
        problem = GroupedProblem(axis, a.shape[-2], b.shape[-1], a.shape[-1], 5, matrix(a), matrix(b), matrix(d))
        arrays = {"a": a, "b": b, "offsets": np.array(ends, np.int32), "d": d}
        with nothing_strays(d):
            run_kernel(problem, Choice(SPEC, SMALL), arrays, Options(checks=True))
        found[ends] = d[:3] if axis == "k" else d[:70] if axis == "m" else d[:, :70]
    np.testing.assert_array_equal(*(x.astype(np.float32) for x in found.values()))


@pytest.mark.slow
@pytest.mark.parametrize("config", SPEC.configs, ids=lambda config: str(config).replace(" ", ","))
@pytest.mark.parametrize("axis", "mk")
def test_every_config(axis, config, rng):
    config = dataclasses.replace(config, ctas=4)
    multiply(rng, axis, (5, 5, 280, 281, 400), config, sizes=(136, 264), extent=408)
