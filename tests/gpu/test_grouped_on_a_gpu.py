"""Grouped products on the hardware: every kind and config, random ends, gradients, captured graphs, and its record."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from pathlib import Path

import pytest

import gemmule as gm
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import kernels_of
from gemmule.kernels.hopper.grouped.spec import SPEC as HOPPER_GROUPED
from gemmule.kernels.mma_sync.grouped_gemv.spec import SPEC as GEMV
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel

pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA context")

#: The kernel of each type.
KERNELS = {"bfloat16": "hopper_grouped", "float16": "hopper_grouped", "float32": "simt_grouped"}
CONFIGS = [
    pytest.param(spec, config, id=f"{spec.name}-{config}".replace(" ", ","))
    for spec in kernels_of("grouped")
    for config in spec.configs
    if spec.name in KERNELS.values()
]
RECORDS = Path(__file__).parents[2] / "benchmarks" / "records"


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


@pytest.fixture
def gt(torch):
    import gemmule.torch

    return gemmule.torch


def integers(torch, *shape, dtype="bfloat16"):
    """Integers, whose sums are exact."""
    return torch.randint(-4, 5, shape, device="cuda").to(getattr(torch, dtype))


def random_ends(torch, groups, extent):
    ends = torch.randint(0, extent + 1, (groups,), device="cuda").sort().values
    return ends.to(torch.int32)


def operands(torch, axis, groups, extent, x=264, y=392, dtype="bfloat16"):
    if axis == "m":
        return integers(torch, extent, x, dtype=dtype), integers(torch, groups, y, x, dtype=dtype).mT
    if axis == "n":
        return integers(torch, groups, x, y, dtype=dtype), integers(torch, extent, y, dtype=dtype).mT
    return integers(torch, extent, x, dtype=dtype).mT, integers(torch, extent, y, dtype=dtype)


def expected(torch, axis, a, b, ends):
    a, b, start = a.double(), b.double(), 0
    groups = len(ends)
    shape = (groups, a.shape[0], b.shape[1]) if axis == "k" else (a.shape[-2], b.shape[-1])
    found = torch.zeros(shape, device="cuda", dtype=torch.float64)
    for group, end in enumerate(ends.tolist()):
        part = slice(start, end)
        if axis == "m":
            found[part] = a[part] @ b[group]
        elif axis == "n":
            found[:, part] = a[group] @ b[:, part]
        else:
            found[group] = a[:, part] @ b[part]
        start = end
    return found


@pytest.mark.parametrize("axis", "mnk")
@pytest.mark.parametrize("dtype", KERNELS)
@pytest.mark.parametrize(("groups", "extent"), [(1, 500), (7, 3001), (64, 2048), (300, 4096)])
def test_random_groups(torch, axis, dtype, groups, extent):
    a, b = operands(torch, axis, groups, extent, dtype=dtype)
    ends = random_ends(torch, groups, extent)
    got = gm.grouped_gemm(a, b, ends, out_dtype="float32")
    assert torch.equal(got.double(), expected(torch, axis, a, b, ends))
    assert gm.grouped_gemm.plan(a, b, ends).kernel == KERNELS[dtype]


@pytest.mark.parametrize(("spec", "config"), CONFIGS)
@pytest.mark.parametrize("axis", "mk")
def test_every_config_and_no_write_elsewhere(torch, axis, spec, config):
    a, b = operands(torch, axis, 9, 2500, dtype="float32" if spec.name == KERNELS["float32"] else "bfloat16")
    ends = random_ends(torch, 9, 2500)
    wanted = expected(torch, axis, a, b, ends)
    memory = torch.full((wanted.numel() + 4096,), 7, device="cuda", dtype=torch.float32)
    d = memory[2048:-2048].view(wanted.shape)
    problem = gm.grouped_gemm.plan(a, b, ends, out=d).problem
    config = config.on(get_device().multiprocessors)
    pointers = {"a": a.data_ptr(), "b": b.data_ptr(), "offsets": ends.data_ptr(), "d": d.data_ptr()}
    run_kernel(problem, Choice(spec, config), pointers, 0, torch.cuda.current_stream().cuda_stream)
    assert torch.equal(d.double(), wanted)
    assert (memory[:2048] == 7).all()
    assert (memory[-2048:] == 7).all()


@pytest.mark.parametrize("config", [config for config in HOPPER_GROUPED.configs if config.dynamic], ids=str)
def test_launches_one_after_another_by_a_counter(torch, config):
    """Nothing clears the counter between launches, which overlap in a stream, and run at once in two."""
    config, work, streams = dataclasses.replace(config, ctas=8), [], [torch.cuda.Stream() for _ in range(2)]
    for groups in range(1, 21):
        a, b = operands(torch, "m", groups, 1500)
        ends = random_ends(torch, groups, 1500)
        work.append((a, b, ends, torch.full((1500, 392), torch.nan, device="cuda", dtype=torch.bfloat16)))
    torch.cuda.synchronize()
    for turn, (a, b, ends, d) in enumerate(2 * work):
        problem = gm.grouped_gemm.plan(a, b, ends, out=d).problem
        pointers = {"a": a.data_ptr(), "b": b.data_ptr(), "offsets": ends.data_ptr(), "d": d.data_ptr()}
        run_kernel(problem, Choice(HOPPER_GROUPED, config), pointers, 0, streams[turn % 2].cuda_stream)
    torch.cuda.synchronize()
    for a, b, ends, d in work:
        assert torch.equal(d, expected(torch, "m", a, b, ends).bfloat16())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_neighbours_do_not_leak(torch, dtype):
    """What belongs to no group may be anything, infinities too."""
    for axis in "mk":
        a, b = operands(torch, axis, 4, 600, dtype=dtype)
        ends = torch.tensor([0, 130, 131, 333], dtype=torch.int32, device="cuda")
        (a if axis == "m" else a.mT)[333:] = torch.nan
        if axis == "k":
            b[333:] = torch.inf
        got = gm.grouped_gemm(a, b, ends)
        wanted = expected(torch, axis, a, b, ends).to(got.dtype)
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("groups", [4, 40])
def test_gradients(torch, gt, groups, dtype):
    a = integers(torch, 1000, 264, dtype=dtype).requires_grad_()
    weights = integers(torch, groups, 136, 264, dtype=dtype).requires_grad_()
    ends = random_ends(torch, groups, 900)
    grad = integers(torch, 1000, 136, dtype=dtype)
    gt.grouped_mm(a, weights.mT, offs=ends).backward(grad)
    wide_grad = expected(torch, "m", grad, weights.detach(), ends)
    assert torch.equal(a.grad, wide_grad.to(a.dtype))
    wanted = expected(torch, "k", grad.mT, a.detach(), ends)
    assert torch.equal(weights.grad, wanted.to(a.dtype))


@pytest.mark.parametrize("axis", "mnk")
@pytest.mark.parametrize("columns", [264, 71])
@pytest.mark.parametrize("transposed_grad", [False, True])
def test_gradients_of_each_kind_and_of_any_number_of_columns(torch, gt, axis, columns, transposed_grad):
    a, b = operands(torch, axis, 5, 601 if axis == "m" else 600, 264, 264)
    # Of the operand that has them, as many columns as wanted, in rows that stay aligned.
    a, b = (a[:, :columns], b) if axis == "n" else (a, b[..., :columns])
    a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
    ends = random_ends(torch, 5, 590)
    got = gt.grouped_mm(a, b, offs=ends)
    grad = integers(torch, *got.shape)
    grad = grad.mT.contiguous().mT if transposed_grad else grad
    wide = [x.detach().double().requires_grad_() for x in (a, b)]
    parts, start = [], 0
    for group, end in enumerate(ends.tolist()):
        part = slice(start, end)
        parts.append(
            wide[0][part] @ wide[1][group]
            if axis == "m"
            else wide[0][group] @ wide[1][:, part]
            if axis == "n"
            else wide[0][:, part] @ wide[1][part]
        )
        start = end
    beyond = {"m": lambda: grad[:start], "n": lambda: grad[:, :start], "k": lambda: grad}[axis]()
    wanted = torch.stack(parts) if axis == "k" else torch.cat(parts, 0 if axis == "m" else 1)
    for mine, its in zip(
        torch.autograd.grad(got, (a, b), grad), torch.autograd.grad(wanted, wide, beyond.double()), strict=True
    ):
        assert torch.equal(mine, its.to(mine.dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_captured_graph_reads_the_sizes_of_each_replay(torch, gt, dtype):
    a, b = operands(torch, "m", 5, 800, dtype=dtype)
    ends = random_ends(torch, 5, 800)
    gt.grouped_mm(a, b, offs=ends)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = gt.grouped_mm(a, b, offs=ends)
    for _ in range(3):
        ends.copy_(random_ends(torch, 5, 800))
        graph.replay()
        assert torch.equal(got, expected(torch, "m", a, b, ends).to(got.dtype))


def test_calls_that_are_found_take_other_arrays(torch):
    """Other memory, less aligned memory, other sizes of groups, a given output and another stream."""
    for turn in range(6):
        a, b = operands(torch, "m", 5, 800)
        ends = random_ends(torch, 5, 800)
        if turn % 2:
            a = torch.cat([a.new_zeros(8), a.flatten()])[8:].view(a.shape)
        wanted = expected(torch, "m", a, b, ends).to(a.dtype)
        out = torch.full_like(wanted, torch.nan) if turn > 3 else None
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            got = gm.grouped_gemm(a, b, ends, out=out)
        stream.synchronize()
        assert torch.equal(got, wanted)
        assert out is None or got is out
    with pytest.raises(gm.OverlapError):
        gm.grouped_gemm(a, b, ends, out=b.mT.view(-1)[: wanted.numel()].view(wanted.shape))


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


def test_nothing_to_multiply_is_zero(torch):
    ends = torch.tensor([1, 3], dtype=torch.int32, device="cuda")
    a, b = integers(torch, 3, 0), integers(torch, 2, 0, 8)
    assert torch.equal(gm.grouped_gemm(a, b, ends), torch.zeros(3, 8, device="cuda", dtype=torch.bfloat16))


def test_an_epilogue_of_nothing_is_that_of_the_bias(torch):
    ends = torch.tensor([1, 3], dtype=torch.int32, device="cuda")
    a, b = integers(torch, 4, 0), integers(torch, 2, 0, 8)
    bias = torch.randn(2, 8, device="cuda").bfloat16()
    wanted = torch.cat([bias[:1], bias[1:], bias[1:], torch.zeros_like(bias[:1])])
    for _ in range(2):
        assert torch.equal(gm.grouped_gemm(a, b, ends, bias=bias), wanted)
        assert torch.equal(gm.grouped_gemm(a, b, ends, bias=bias, epilogue="relu"), wanted.relu())


@pytest.mark.parametrize("axis", "mnk")
@pytest.mark.parametrize("transposed", list(itertools.product((False, True), repeat=2)), ids=str)
def test_float32_of_any_layout_and_alignment(torch, axis, transposed):
    """Random data, of which float64 knows what sums may be off by; the arrays begin 4 bytes behind a multiple of 16."""
    a, b = operands(torch, axis, 11, 700, 83, 131, dtype="float32")
    a, b = (
        torch.cat([x.new_zeros(1), torch.randn_like(x.mT if swapped else x).flatten()])[1:].view(
            (x.mT if swapped else x).shape
        )
        for x, swapped in zip((a, b), transposed, strict=True)
    )
    a, b = (x.mT if swapped else x for x, swapped in zip((a, b), transposed, strict=True))
    ends = random_ends(torch, 11, 650)
    ends[4] = ends[3]
    got = gm.grouped_gemm(a, b, ends)
    size = expected(torch, axis, a.abs(), b.abs(), ends)
    error = (got.double() - expected(torch, axis, a, b, ends)).abs()
    assert (error <= (a.shape[-1] + 3) * 2**-24 * size).all()


# What PyTorch imports for its compiler warns of parts of PyTorch.
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
def test_a_program_of_float32_is_compiled(torch, gt):
    a, b = operands(torch, "m", 5, 800, dtype="float32")
    ends = random_ends(torch, 5, 800)
    got = torch.compile(lambda a, b, ends: gt.grouped_mm(a, b, offs=ends).relu(), fullgraph=True)(a, b, ends)
    assert torch.equal(got.double(), expected(torch, "m", a, b, ends).relu())
    torch.library.opcheck(torch.ops.gemmule.grouped_mm.default, (a.requires_grad_(), b, ends))


def test_a_gated_epilogue_of_float32_is_refused_in_one_line(torch):
    a, b = operands(torch, "m", 5, 800, dtype="float32")
    with pytest.raises(gm.UnsupportedError, match=r"the epilogue is gated.*apply it after") as caught:
        gm.grouped_gemm(a, b, random_ends(torch, 5, 800), epilogue="swiglu")
    assert "\n" not in str(caught.value)


def test_what_does_not_fit_is_said_in_one_line(torch):
    a, b = operands(torch, "m", 5, 800)
    ends = random_ends(torch, 5, 800)
    with pytest.raises(gm.UnsupportedError, match="contiguous along M"):
        gm.grouped_gemm(a.mT.contiguous().mT, b, ends)


def test_a_record(torch, monkeypatch):
    monkeypatch.syspath_prepend(str(RECORDS))
    module = __import__("grouped")
    monkeypatch.setattr(module, "_ROUNDS", 1)
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("this PyTorch has no grouped product")
    for kind in ("forward", "grad_input", "grad_weight", "rows"):
        record = module.measured(module.Cell(kind, False, 4, 3 if kind == "rows" else 512, 256, 256))
        assert record["error"] <= 1
        assert record["ratio"] == pytest.approx(record["other_us"] / record["us"], rel=1e-3)
    sys.modules.pop("grouped")
