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
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel
from support.gpu.grouped_tensors import expected, integers, operands, random_ends

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


def test_nothing_to_multiply_is_zero(torch):
    ends = torch.tensor([1, 3], dtype=torch.int32, device="cuda")
    a, b = integers(torch, 3, 0), integers(torch, 2, 0, 8)
    assert torch.equal(gm.grouped_gemm(a, b, ends), torch.zeros(3, 8, device="cuda", dtype=torch.bfloat16))


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
