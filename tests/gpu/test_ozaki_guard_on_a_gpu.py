"""``precision="ozaki"`` on the hardware: each decision within the native bound, also when a CUDA graph replays it."""

from __future__ import annotations

import pytest

import gemmule as gm
from gemmule.core.dtype import FLOAT32, FLOAT64, dtype_named
from gemmule.runtime.device import get_device

#: A square that is emulated where the guard allows it.
SIDE = 3072


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


def change(torch, name, a):
    """Change A to an input of that name."""
    if name == "wide":
        a *= torch.exp(6 * torch.randn_like(a))
    elif name == "infinity":
        a[7, 9] = float("inf")
    elif name == "infinities":
        # In more rows than are computed natively.
        a[::24, 9] = float("inf")
    elif name == "large":
        # In no line, and at no place along K, of the pairs that may refuse early.
        a[SIDE // 2 + 37, SIDE // 3 + 17] = 2.0**80
    elif name == "tiny":
        a[7, 9] = 2.0**-120


def within(torch, got, a, b, unit):
    """Whether a product is as near to another one as two native ones may be."""
    wide = torch.mm(a.double(), b.double()) if unit > 1e-10 else torch.mm(a, b)
    size = torch.mm(a.double().abs(), b.double().abs())
    fine = torch.isfinite(size)
    assert torch.equal(torch.isnan(got), torch.isnan(wide))
    return bool(((got.double() - wide).abs() <= 2 * (SIDE + 3) * unit * size)[fine].all())


@pytest.mark.parametrize(("dtype", "name", "ran"), [
    ("float64", "normal", "ozaki-14"), ("float64", "wide", "ieee"),
    ("float64", "infinity", "ozaki-14, ieee in 1 row"), ("float64", "large", "ozaki-14, ieee in 1 row"),
    ("float64", "infinities", "ieee"),
    ("float32", "normal", "bf16x6"), ("float32", "tiny", "ieee"), ("float32", "infinity", "ieee"),
])  # fmt: skip
def test_what_runs_is_within_the_bound(dtype, name, ran, torch):
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=getattr(torch, dtype)) for _ in range(2))
    change(torch, name, a)
    plan = gm.matmul.plan(a, b, precision="ozaki")
    assert plan.decision() == (ran,)
    unit = (FLOAT64 if dtype == "float64" else FLOAT32).unit_roundoff
    assert within(torch, gm.matmul(a, b, precision="ozaki"), a, b, unit)


@pytest.mark.parametrize("name", ["normal", "wide", "infinity"])
@pytest.mark.parametrize(("dtype", "emulated"), [("complex128", "ozaki-14"), ("complex64", "ozaki-7")])
def test_parts_of_complex_products_are_within_the_bound(name, dtype, emulated, torch):
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=getattr(torch, dtype)) for _ in range(2))
    ran, unit = emulated if name == "normal" else "ieee", dtype_named(dtype).part.unit_roundoff
    change(torch, name, a)
    plan = gm.matmul.plan(a.mH, b, precision="ozaki")
    assert plan.decision() == (ran,)
    got, plain = gm.matmul(a.mH, b, precision="ozaki"), gm.matmul(a.mH, b)
    (ar, ai), (br, bi) = ((x.real.abs(), x.imag.abs()) for x in (a.mT, b))
    for part, size in (("real", ar @ br + ai @ bi), ("imag", ar @ bi + ai @ br)):
        one, other, fine = getattr(got, part), getattr(plain, part), torch.isfinite(size)
        assert torch.equal(torch.isfinite(one), torch.isfinite(other))
        assert bool(((one - other).abs() <= 2 * (2 * SIDE + 6) * unit * size)[fine].all())


def test_long_sums_of_equal_numbers_stay_in_range(torch):
    """All are rounded up, by which norms grow: the sums are the largest that residues must tell apart."""
    part, k = 474321.65625, 2**16
    a, b = (torch.full((1024, k), complex(part, part), device="cuda", dtype=torch.complex64) for _ in range(2))
    assert gm.matmul.plan(a, b.mH, precision="ozaki").decision() == ("ozaki-7",)
    got, exact = gm.matmul(a, b.mH, precision="ozaki"), 2 * k * part**2
    bound = (2 * k + 3) * FLOAT32.unit_roundoff * exact
    assert bool(((got.real.double() - exact).abs() <= bound).all())
    assert bool((got.imag.abs() <= bound).all())


def test_a_graph_decides_at_each_replay(torch):
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.float64) for _ in range(2))
    out = torch.full_like(a, float("nan"))
    gm.matmul(a, b, out, precision="ozaki")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gm.matmul(a, b, out, precision="ozaki")
    for name in ("normal", "wide", "infinity", "infinities", "large", "normal"):
        a.normal_()
        change(torch, name, a)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert within(torch, out, a, b, FLOAT64.unit_roundoff)
