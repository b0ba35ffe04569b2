"""``precision="ozaki"`` on the virtual GPU, all checks on: the native product's bound on every input, and what ran."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import FLOAT32, FLOAT64
from gemmule.kernels.emulation.ozaki_gemm import first_launches
from gemmule.kernels.emulation.ozaki_gemm import spec as own
from gemmule.kernels.float64.config import Float64Config
from gemmule.vgpu import VirtualGpuError, execute

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

M, N = 20, 24


@pytest.fixture(autouse=True)
def _checks(monkeypatch):
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")


UNITS = {np.dtype(np.float64): FLOAT64.unit_roundoff, np.dtype(np.float32): FLOAT32.unit_roundoff}


def share_of_bound(got, a, b):
    """The largest error, over (K + 3) u |A||B| and what subnormal numbers lose; of elements that are finite."""
    wide = [x.astype(np.longdouble) for x in (a, b)]
    with np.errstate(invalid="ignore"):
        exact, size = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
    k, fine = a.shape[1], np.isfinite(size)
    bound = (k + 3) * (UNITS[a.dtype] * size + np.finfo(a.dtype).smallest_subnormal)
    assert np.isfinite(got[fine]).all()
    return float(np.max(np.abs(got[fine] - exact[fine]) / bound[fine], initial=0.0))


def powers(rng, span, *shape):
    return np.exp2(rng.integers(-span // 2, span // 2 + 1, shape).astype(np.float64))


def normal(rng, k):
    return rng.standard_normal((M, k)), rng.standard_normal((k, N))


def spans(span, where):
    def draw(rng):
        a, b = normal(rng, 130)
        along = powers(rng, span, 130)
        if where == "rows":
            return a * powers(rng, span, M, 1), b * powers(rng, span, 1, N)
        if where == "columns":
            return a * along, b
        if where == "against each other":
            return a * along, b / along[:, None]
        return a * powers(rng, span, *a.shape), b * powers(rng, span, *b.shape)

    return draw


def wide(spread, k=130):
    return lambda rng: tuple((x - 0.5) * np.exp(spread * rng.standard_normal(x.shape)) for x in uniform(rng, k))


def uniform(rng, k=130):
    return rng.random((M, k)), rng.random((k, N))


def one_column(power):
    """Rows of A with a norm that the other columns have little of."""

    def draw(rng):
        a, b = normal(rng, 130)
        a[:, 9] = 2.0**power
        b[9] = 2.0**-power
        return a, b

    return draw


def hilbert(rng):
    del rng
    rows, depth, cols = np.arange(M), np.arange(130), np.arange(N)
    return 1 / (rows[:, None] + depth + 1), 1 / (depth[:, None] + cols + 1)


def graded(rng):
    a, b = normal(rng, 130)
    down = np.exp2(-np.arange(130.0))
    return a * down, b * down[::-1, None]


def small_beside_large(rng):
    """One element of a row of A that only columns meet whose other elements are zero."""
    a, b = normal(rng, 130)
    a[3], b[:, 5] = 0, 0
    a[3, 7], a[3, 8], b[7, 5], b[8, 4] = 2.0**-70, 1.0, 1.0, 1.0
    b[8, 5] = 0
    return a, b


def not_finite(value):
    def draw(rng):
        a, b = normal(rng, 130)
        a[2, 3] = value
        return a, b

    return draw


def zeros(rng):
    a, b = normal(rng, 130)
    a[4], b[:, 6] = 0, 0
    return a, b


#: Inputs of float64, and what must run; None where either may.
INPUTS = {
    "normal": (lambda rng: normal(rng, 130), "ozaki-14"),
    "uniform": (uniform, "ozaki-14"),
    "zeros": (zeros, "ozaki-14"),
    "rows 2^300": (spans(300, "rows"), "ozaki-14"),
    "a column of 2^7": (one_column(7), "ozaki-15"),
    "a column of 2^11": (one_column(11), "ozaki-16"),
    "a column of 2^18": (one_column(18), "ieee"),
    "exp(z)": (wide(1), None),
    "exp(4 z)": (wide(4), "ieee"),
    "elements 2^40": (spans(40, "elements"), "ieee"),
    "columns 2^100": (spans(100, "columns"), None),
    "against 2^200": (spans(200, "against each other"), "ieee"),
    "elements 2^300": (spans(300, "elements"), "ieee"),
    "graded": (graded, "ieee"),
    "Hilbert": (hilbert, None),
    "small beside large": (small_beside_large, "ieee"),
    "denormals": (lambda rng: (normal(rng, 130)[0] * 2.0**-1060, normal(rng, 130)[1] * 2.0**40), "ieee"),
    "infinity": (not_finite(np.inf), "ieee"),
    "NaN": (not_finite(np.nan), "ieee"),
}


#: Those that every run takes: each decision, and a line of zeros.
FEW = ("normal", "zeros", "a column of 2^7", "a column of 2^11", "elements 2^300", "infinity")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FEW else [pytest.mark.slow]) for name in INPUTS]
)
def test_every_input_is_within_the_bound_of_the_native_product(name, rng):
    draw, ran = INPUTS[name]
    a, b = draw(rng)
    plan = gm.matmul.plan(a, b, precision="ozaki", executor="vgpu")
    decision = plan.decision()
    got = plan.execute()
    assert share_of_bound(got, a, b) <= 1
    assert ran is None or decision == (ran,)
    with np.errstate(invalid="ignore"):
        plain = a @ b
    np.testing.assert_array_equal(np.isnan(got), np.isnan(plain))
    np.testing.assert_array_equal(np.isposinf(got), np.isposinf(plain))
    np.testing.assert_array_equal(np.isneginf(got), np.isneginf(plain))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["against 2^200", "elements 2^300", "small beside large"])
def test_without_the_guard_they_are_not(name, rng):
    """The inputs above are hostile: the same products beyond the bound, by as many moduli as there are."""
    a, b = INPUTS[name][0](rng)
    assert share_of_bound(gm.matmul(a, b, precision="ozaki-16", executor="vgpu"), a, b) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ran"), [("normal", "bf16x6"), ("tiny", "ieee"), ("huge", "ieee"), ("nan", "ieee")])
def test_float32_is_guarded_too(name, ran, rng):
    a, b = (x.astype(np.float32) for x in normal(rng, 130))
    a[5, 9] = {"tiny": 2.0**-111, "huge": 2.0**48, "nan": np.nan}.get(name, a[5, 9])
    if name == "tiny":
        # Alone in its column of A: the whole sum where it meets zeros otherwise.
        a[5], a[5, 9] = 0, 1.3 * 2.0**-120
        b[9] *= 2.0**60
    plan = gm.matmul.plan(a, b, precision="ozaki", executor="vgpu")
    assert plan.decision() == (ran,)
    got = plan.execute()
    assert share_of_bound(got, a, b) <= 1
    np.testing.assert_array_equal(np.isnan(got), np.isnan(a @ b))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "elements 2^300" else [pytest.mark.slow]) for name in INPUTS]
)
def test_what_refuses_early_changes_no_decision(name, rng, monkeypatch):
    """Pairs of lines, and lines, refuse only what the guard refuses without them."""
    a, b = INPUTS[name][0](rng)
    found = gm.matmul.plan(a, b, precision="ozaki", executor="vgpu").decision()
    monkeypatch.setattr(first_launches, "least_share", lambda _k, _real: 0.0)
    monkeypatch.setattr(first_launches, "least_magnitude", lambda _k, _real: 0)
    assert gm.matmul.plan(a, b, precision="ozaki", executor="vgpu").decision() == found


@pytest.mark.parametrize("shape", [(256, 256), pytest.param((300, 270), marks=pytest.mark.slow)], ids=str)
def test_one_pair_in_any_tile_decides(shape, rng, monkeypatch):
    """Tiles that are whole, and those that end within the matrices: the least sum of magnitudes is anywhere in them."""
    monkeypatch.setattr(first_launches, "least_share", lambda _k, _real: 0.0)
    a, b = rng.standard_normal((shape[0], 130)), rng.standard_normal((130, shape[1]))
    assert gm.matmul.plan(a, b, precision="ozaki", executor="vgpu").decision() == ("ozaki-14",)
    for _ in range(3):
        one, other = a.copy(), b.copy()
        i, j = (int(rng.integers(extent)) for extent in shape)
        one[i], other[:, j] = 0, 0
        # The row's large element meets a zero, and the column's too.
        one[i, 7:9], other[7:10, j] = (2.0**-70, 1), (1, 0, 1)
        assert gm.matmul.plan(one, other, precision="ozaki", executor="vgpu").decision() == (
            "ozaki-16, ieee in 1 row",
        ), (i, j)


@pytest.mark.parametrize("order", ["CC", *(pytest.param(one, marks=pytest.mark.slow) for one in ("FF", "FC", "CF"))])
def test_long_lines_in_every_layout(order, rng, monkeypatch):
    """CTAs measure lines in several rounds, the last ones fewer lines, and sample a part of K."""
    monkeypatch.setattr(first_launches, "least_share", lambda _k, _real: 0.0)
    monkeypatch.setattr(first_launches, "least_magnitude", lambda _k, _real: 0)
    a, b = rng.standard_normal((M, 1100)), rng.standard_normal((1100, N))

    def ran(one, other):
        layouts = (np.asarray(x, order=kind) for x, kind in zip((one, other), order, strict=True))
        plan = gm.matmul.plan(*layouts, precision="ozaki", executor="vgpu")
        assert share_of_bound(plan.execute(), one, other) <= 1
        return plan.decision()

    assert ran(a, b) == ("ozaki-14",)
    # Not sampled: in a norm alone.
    for k in (367, 1007):
        large = a.copy()
        large[-1, k] = 2.0**70
        assert ran(large, b) == ("ieee",)
    apart, other, quarter = a.copy(), b.copy(), np.arange(1100) // 16 % 4
    # Sampled are the same runs of both, of four the first.
    apart[-1, quarter < 2], other[quarter >= 2, -1] = 0, 0
    assert ran(apart, other) == ("ieee",)


@pytest.mark.parametrize("order", ["CC", "FC"])
def test_geometric_means_decide_without_the_product_of_magnitudes(order, rng, monkeypatch):
    """It would refuse everything here, and is computed where one line has a small mean."""
    monkeypatch.setattr(first_launches, "furthest_below", lambda _k, _real: (0, 0, 0))
    monkeypatch.setattr(first_launches, "least_share", lambda _k, _real: 0.0)

    def ran(a, b):
        layouts = (np.asarray(x, order=kind) for x, kind in zip((a, b), order, strict=True))
        return gm.matmul.plan(*layouts, precision="ozaki", executor="vgpu").decision()

    a, b = rng.standard_normal((M, 1100)), rng.standard_normal((1100, N))
    a[3], b[:, 7] = 0, 0
    assert ran(a, b) == ("ozaki-14",)
    for matrix, line in ((a, (5, slice(800))), (b, (slice(300, None), 21))):
        before = matrix[line].copy()
        matrix[line] *= 2.0**-40
        assert ran(a, b) == ("ieee",)
        matrix[line] = before
    # Of numbers near the smallest a zero would not be small.
    assert ran(a * 2.0**-1015, b * 2.0**1000) == ("ieee",)
    assert ran(a, b) == ("ozaki-14",)
    monkeypatch.setattr(first_launches, "least_exponents", lambda _k, _real: 2**31 - 1)
    assert ran(a, b) == ("ieee",)


@pytest.mark.parametrize(("which", "value"), [("least_share", np.inf), ("least_magnitude", 0x7D)])
def test_one_pair_of_lines_refuses_the_product_and_so_does_one_line(which, value, rng, monkeypatch):
    """Its lines are not measured then, and its residues are not computed."""
    a, b = normal(rng, 130)
    monkeypatch.setattr(first_launches, which, lambda _k, _real: value)
    plan = gm.matmul.plan(a, b, precision="ozaki", executor="vgpu")
    assert plan.decision() == ("ieee",)
    assert share_of_bound(plan.execute(), a, b) <= 1


def test_the_first_launch_sets_the_shortfall_that_others_raise(rng, monkeypatch):
    """Workspaces hold anything before: here a shortfall that nothing passes with."""
    monkeypatch.setattr(execute, "POISON", 0x7F)
    plan = gm.matmul.plan(*normal(rng, 130), precision="ozaki", executor="vgpu")
    plan.execute()
    assert plan.decision() == ("ozaki-14",)


@pytest.mark.parametrize("tma", [{}, {"warps_n": 4, "tma": 1}], ids=str)
@pytest.mark.parametrize(("name", "ran"), [("normal", "ozaki-14"), ("elements 2^300", "ieee")])
def test_the_native_kernel_may_share_tiles(name, ran, tma, rng, monkeypatch):
    """Of CTAs that return at once none waits for partial sums, and those that compute find no flag set."""
    native = dataclasses.replace(own.NATIVE, configs=(Float64Config(stages=3, stream_k=1, **tma),))
    monkeypatch.setattr(own, "NATIVE", native)
    own._next_kernel.cache_clear()
    a, b = INPUTS[name][0](rng)
    plan = gm.matmul.plan(a, b, precision="ozaki", executor="vgpu")
    assert plan.decision() == (ran,)
    assert share_of_bound(plan.execute(), a, b) <= 1
    own._next_kernel.cache_clear()


@pytest.mark.parametrize("out", ["columns", "strides", "float32"])
def test_a_decision_where_the_kernel_writes_into_another_form(out, rng):
    """The guard reads A and B alone: of a C in another layout, and of a result that is computed from a workspace."""
    a, b = normal(rng, 130)
    c = rng.standard_normal((M, N))
    d = {
        "columns": np.zeros((M, N), order="F"),
        "strides": np.zeros((2 * M, 2 * N))[::2, ::2],
        "float32": np.zeros((M, N), np.float32),
    }[out]
    plan = gm.gemm.plan(a, b, c, out=d, beta=0.5, precision="ozaki", executor="vgpu")
    assert plan.kernel == "ozaki_gemm"
    assert plan.decision() == ("ozaki-14",)


@pytest.mark.parametrize(
    ("kernel", "wait", "race"),
    [
        # The native kernel lets the kernels behind it launch before the guard has ended, whose shortfall they read.
        ("float64_guarded", "griddepcontrol.launch_dependents;", "ozaki_residues.*operand shortfall"),
        # Residues, and sums of them, are read while they are written.
        ("ozaki_products", "", "ozaki_products.*residues of"),
        ("ozaki_reconstruction", "", "ozaki_reconstruction.*residues of"),
        # Pairs, and scales that begin with them, read words before they are set.
        ("ozaki_pairs", "", "ozaki_scales.*operand shortfall"),
    ],
)
def test_grids_wait_for_what_they_read(kernel, wait, race, rng, monkeypatch):
    """Without their waits, or with a launch before it, the checks find a race."""
    program_of = execute.program_of

    def changed(ptx):
        if f".entry {kernel}" in ptx:
            assert "griddepcontrol.wait;" in ptx
            ptx = ptx.replace("griddepcontrol.wait;", wait)
        return program_of(ptx)

    # The guard's product of magnitudes raises the shortfall, and an element that is not finite does.
    a, b = INPUTS["a column of 2^11"][0](rng)
    gm.matmul(a, b, precision="ozaki", executor="vgpu")
    monkeypatch.setattr(execute, "program_of", changed)
    with pytest.raises(VirtualGpuError, match=f"(?s)race in {race}"):
        gm.matmul(a, b, precision="ozaki", executor="vgpu")


@pytest.mark.slow
def test_ctas_behind_the_first_wave(rng, monkeypatch):
    """More than run at once: the last ones look at the shortfall before they read, and refuse too."""
    monkeypatch.setattr(first_launches, "least_share", lambda _k, _real: 0.0)
    a, b = rng.standard_normal((1500, 130)), rng.standard_normal((130, 24))
    assert gm.matmul.plan(a, b, precision="ozaki", executor="vgpu").decision() == ("ozaki-14",)
    # One row more than there is room for.
    a[-1500 // 32 :, 100] = np.nan
    assert gm.matmul.plan(a, b, precision="ozaki", executor="vgpu").decision() == ("ieee",)


def test_addends_layouts_and_batches(rng):
    """Each matrix of a batch is decided for by itself, and C is read by what computes."""
    a, b, c = rng.standard_normal((2, 37, 141)), rng.standard_normal((141, 29)), rng.standard_normal((2, 37, 29))
    # The largest elements of rows meet a zero: a column of the result depends on the others alone.
    a[1, :, 7], b[7, 3] = 2.0**40, 0
    plan = gm.gemm.plan(
        np.ascontiguousarray(a.mT).mT, b.T.copy().T, c, alpha=0.75, beta=-1.5, precision="ozaki", executor="vgpu"
    )
    assert plan.decision() == ("ozaki-14", "ieee")
    got = plan.execute()
    for one, x, y in zip(got, a, c, strict=True):
        wide_x, wide_b = x.astype(np.longdouble), b.astype(np.longdouble)
        exact, size = 0.75 * (wide_x @ wide_b) - 1.5 * y, 0.75 * np.abs(wide_x) @ np.abs(wide_b) + 1.5 * np.abs(y)
        assert np.all(np.abs(one - exact) <= (141 + 3) * FLOAT64.unit_roundoff * size)


@pytest.mark.parametrize(
    ("name", "precision", "computed"),
    [
        ("float32", "bf16x6", "bf16x6"),
        ("float64", "ozaki-15", "ozaki-15"),
        ("float32", "tf32", "tf32"),
        ("float32", None, "ieee"),
        ("float64", None, "ieee"),
    ],
)
def test_without_a_guard_the_precision_is_the_kernels(name, precision, computed):
    a = np.ones((64, 64), name)
    assert gm.matmul.plan(a, a, precision=precision, executor="vgpu").decision() == (computed,)


def test_where_there_is_nothing_to_guard(rng):
    a = rng.standard_normal((3, 4))
    assert gm.matmul.plan(a, a.T, precision="ozaki", executor="cpu").decision() == ("ieee",)
    empty = gm.matmul.plan(a[:, :0], a.T[:0], precision="ozaki", executor="vgpu")
    assert empty.decision() == ("ieee",)
    np.testing.assert_array_equal(empty.execute(), np.zeros((3, 3)))
