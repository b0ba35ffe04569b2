"""Grouped products on the hardware for mixtures of experts: epilogues, rows that name their matrices, gradients."""

from __future__ import annotations

import itertools

import pytest

import gemmule as gm
from gemmule.core.spec import Choice
from gemmule.kernels.mma_sync.grouped_gemv.spec import SPEC as GEMV
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel
from support.gpu.grouped_tensors import expected, integers, operands, random_ends


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


@pytest.mark.parametrize(
    ("dtype", "epilogue"),
    [("bfloat16", None), ("bfloat16", "relu"), ("bfloat16", "swiglu"), ("float32", None), ("float32", "relu")],
)
@pytest.mark.parametrize("biased", [False, True])
def test_epilogues(torch, dtype, epilogue, biased):
    """Twice with other arrays: planned, and found."""
    for _ in range(2):
        a, b = operands(torch, "m", 6, 900, y=784, dtype=dtype)
        ends = random_ends(torch, 6, 800)
        bias = torch.randn(6, 784, device="cuda") if biased else None
        got = gm.grouped_gemm(a, b, ends, bias=bias, epilogue=epilogue, out_dtype="float32")
        wanted = expected(torch, "m", a, b, ends)
        for group, (start, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
            if biased:
                wanted[start:end] += bias[group]
        if epilogue == "relu":
            wanted = wanted.relu()
        if epilogue == "swiglu":
            gate, up = wanted.chunk(2, 1)
            wanted = torch.nn.functional.silu(gate) * up
        assert (got[ends[-1] :] == 0).all()
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.05), ("float32", 1e-5)])
def test_experts_of_a_mixture(torch, gt, dtype, tolerance):
    """With gradients as without, where SwiGLU is an epilogue in 16 bits."""
    dtype = getattr(torch, dtype)
    mixture = torch.nn.Module()
    mixture.gate_up_proj = torch.nn.Parameter(torch.randn(8, 256, 64) / 8)
    mixture.down_proj = torch.nn.Parameter(torch.randn(8, 64, 128) / 8)
    mixture.act_fn = torch.nn.SiLU()
    mixture = mixture.to("cuda", dtype)
    assert gt.replace_experts(mixture) == ("",)
    x, weights = torch.randn(300, 64, device="cuda").to(dtype), torch.rand(300, 2, device="cuda")
    index = torch.rand(300, 8, device="cuda").topk(2).indices
    wanted = torch.zeros(300, 64, device="cuda", dtype=torch.float64)
    for slot in range(2):
        up, down = mixture.gate_up_proj.double()[index[:, slot]], mixture.down_proj.double()[index[:, slot]]
        gate, up = (up @ x.double().unsqueeze(-1)).squeeze(-1).chunk(2, 1)
        inner = torch.nn.functional.silu(gate) * up
        wanted += weights[:, slot, None] * (down @ inner.unsqueeze(-1)).squeeze(-1)
    with_gradient = mixture(x, index, weights)
    with torch.no_grad():
        without = mixture(x, index, weights)
    for got in (with_gradient, without):
        torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)
    with_gradient.sum().backward()
    assert mixture.gate_up_proj.grad.isfinite().all()


@pytest.mark.parametrize("slots", [1, 2, 7])
def test_experts_of_one_token(torch, gt, slots):
    """Each slot's row names its expert; two slots have one that is none, of which nothing is read."""
    mixture = torch.nn.Module()
    mixture.gate_up_proj = torch.nn.Parameter(torch.randn(8, 272, 200) / 8)
    mixture.down_proj = torch.nn.Parameter(torch.randn(8, 200, 136) / 8)
    mixture.act_fn = torch.nn.SiLU()
    mixture = mixture.to("cuda", torch.bfloat16)
    mixture.gate_up_proj.data[7] = mixture.down_proj.data[7] = torch.nan
    assert gt.replace_experts(mixture) == ("",)
    for turn in range(4):
        x, weights = torch.randn(1, 200, device="cuda").bfloat16(), torch.rand(1, slots, device="cuda")
        index = torch.randint(0, 7, (1, slots), device="cuda")
        if slots > 2:
            index[0, turn % 2], index[0, 4] = 8, 100
        wanted = torch.zeros(1, 200, device="cuda", dtype=torch.float64)
        for slot, expert in enumerate(index[0].tolist()):
            if expert < 8:
                gate, up = (mixture.gate_up_proj.double()[expert] @ x[0].double()).chunk(2)
                inner = torch.nn.functional.silu(gate) * up
                wanted += weights[0, slot] * (mixture.down_proj.double()[expert] @ inner)
        with torch.no_grad():
            got = mixture(x, index, weights)
        # Rounded to 8 bits: what is between the products, each slot, its weight and the sum.
        torch.testing.assert_close(got.double(), wanted, rtol=0.03, atol=0.03 + 0.01 * slots)


def test_rows_that_name_their_matrices(torch):
    """Repeated calls with other numbers, past the call cache and through it; a row that names no matrix holds NaN."""
    a, b = integers(torch, 9, 72), integers(torch, 5, 136, 72).mT
    for turn in range(5):
        numbers = torch.randint(-1, 6, (9,), device="cuda", dtype=torch.int32)
        out = torch.full((9, 136), torch.nan, device="cuda", dtype=torch.bfloat16) if turn % 2 else None
        given = torch.where(((numbers >= 0) & (numbers < 5))[:, None], a, torch.nan)
        got = gm.grouped_gemm(given, b, matrices=numbers, out=out)
        finished = gm.grouped_gemm(given, b, matrices=numbers, epilogue=lambda acc: acc + 1)
        assert not finished[(numbers < 0) | (numbers >= 5)].any()
        zero = torch.zeros(72, 136, device="cuda", dtype=torch.bfloat16)
        wanted = torch.stack([a[i] @ (b[n] if 0 <= n < 5 else zero) for i, n in enumerate(numbers.tolist())])
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("config", GEMV.configs, ids=str)
@pytest.mark.parametrize(("n", "k"), [(1000, 768), (200, 14336)])
def test_every_config_of_rows_that_name_their_matrices(torch, config, n, k):
    """One row for all numbers, by a stride of 0; some are none of a matrix."""
    a, b = torch.randn(k, device="cuda").bfloat16().expand(11, k), torch.randn(5, n, k, device="cuda").bfloat16()
    numbers = torch.randint(-1, 6, (11,), device="cuda", dtype=torch.int32)
    memory = torch.full((11 * n + 4096,), 7, device="cuda", dtype=torch.float32)
    d = memory[2048:-2048].view(11, n)
    plan = gm.grouped_gemm.plan(a, b.mT, matrices=numbers, out=d)
    assert plan.kernel == GEMV.name
    pointers = {"a": a.data_ptr(), "b": b.data_ptr(), "matrices": numbers.data_ptr(), "d": d.data_ptr()}
    run_kernel(plan.problem, Choice(GEMV, config), pointers, 0, torch.cuda.current_stream().cuda_stream)
    there = (numbers >= 0) & (numbers < 5)
    named = torch.where(there[:, None, None], b[numbers.clamp(0, 4).long()], 0).double()
    exact, size = (torch.einsum("rk,rnk->rn", *pair) for pair in ((a.double(), named), (a.double().abs(), named.abs())))
    assert ((d.double() - exact).abs() <= size * 2.0**-20).all()
    assert not d[~there].any()
    assert (memory[:2048] == 7).all()
    assert (memory[-2048:] == 7).all()


def test_an_epilogue_of_nothing_is_that_of_the_bias(torch):
    ends = torch.tensor([1, 3], dtype=torch.int32, device="cuda")
    a, b = integers(torch, 4, 0), integers(torch, 2, 0, 8)
    bias = torch.randn(2, 8, device="cuda").bfloat16()
    wanted = torch.cat([bias[:1], bias[1:], bias[1:], torch.zeros_like(bias[:1])])
    for _ in range(2):
        assert torch.equal(gm.grouped_gemm(a, b, ends, bias=bias), wanted)
        assert torch.equal(gm.grouped_gemm(a, b, ends, bias=bias, epilogue="relu"), wanted.relu())


def test_a_gated_epilogue_of_float32_is_refused_in_one_line(torch):
    a, b = operands(torch, "m", 5, 800, dtype="float32")
    with pytest.raises(gm.UnsupportedError, match=r"the epilogue is gated.*apply it after") as caught:
        gm.grouped_gemm(a, b, random_ends(torch, 5, 800), epilogue="swiglu")
    assert "\n" not in str(caught.value)
