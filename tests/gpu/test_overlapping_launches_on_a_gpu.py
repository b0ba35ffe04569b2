"""Launches that may begin while the one in front of them ends: each reads what that one wrote, and not too early."""

from __future__ import annotations

import pytest

import gemmule as gm
from gemmule.runtime.execute import launches_of

#: K of products that are in front of what they let begin.
DEPTH = 65536


def overlapping(a, b, out):
    """Return whether the launch of a product may begin before the one in front has ended."""
    plan = gm.matmul.plan(a, b, out=out)
    (step,) = launches_of(plan.problem, plan.choice, 0, (*plan.places, "d")).steps()
    return plan.kernel, step.launch.overlaps


def small_integers(torch, *shape, dtype):
    return torch.randint(-2, 3, shape, device="cuda").to(dtype)


def shift(torch, edge, dtype):
    """Return a permutation with signs: a product with it is exact."""
    made = torch.zeros(edge, edge, device="cuda", dtype=dtype)
    signs = torch.randint(0, 2, (edge,), device="cuda").to(dtype) * 2 - 1
    made[torch.arange(edge, device="cuda"), torch.randperm(edge, device="cuda")] = signs
    return made


@pytest.mark.parametrize("captured", [False, True], ids=["queued", "captured"])
@pytest.mark.parametrize(
    ("kernel", "dtype", "edge"),
    [
        *[("simt_gemm", "float32", edge) for edge in (32, 64, 131, 256)],
        *[("float64_gemm", "float64", edge) for edge in (32, 77, 131, 192)],
        *[("mma_sync_small", "bfloat16", edge) for edge in (36, 47, 65, 100, 333)],
        ("hopper_gemm", "float16", 384),
    ],
)
def test_products_of_what_the_last_product_wrote(torch, kernel, dtype, edge, captured):
    """Permutations and signs move exact numbers from buffer to buffer, each of which is written again at once."""
    kind = getattr(torch, dtype)
    shifts = [shift(torch, edge, kind) for _ in range(2)]
    x = small_integers(torch, edge, edge, dtype=kind)
    buffers = [torch.full_like(x, float("nan")) for _ in range(2)]
    assert overlapping(x, shifts[0], buffers[0]) == (kernel, True)

    def steps():
        gm.matmul(x, shifts[0], out=buffers[0])
        for _ in range(40):
            gm.matmul(buffers[0], shifts[1], out=buffers[1])
            gm.matmul(buffers[1], shifts[0], out=buffers[0])

    steps()
    for _ in range(5):
        x.copy_(small_integers(torch, edge, edge, dtype=kind))
        for buffer in buffers:
            buffer.fill_(float("nan"))
        expected = x.cpu().double() @ shifts[0].cpu().double()
        for _ in range(40):
            expected = expected @ shifts[1].cpu().double() @ shifts[0].cpu().double()
        torch.cuda.synchronize()
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                steps()
            graph.replay()
        else:
            steps()
        assert torch.equal(buffers[0].cpu().double(), expected)


@pytest.mark.parametrize("edge", [64, 128, 256])
def test_behind_copies_and_kernels_that_let_the_next_one_begin(torch, edge):
    """PyTorch's copies and kernels, and a product of 16-bit matrices, which tells the next launch to begin early."""
    half, wide = torch.bfloat16, torch.float32
    b = small_integers(torch, edge, edge, dtype=half)
    given = [[small_integers(torch, edge, edge, dtype=dtype) for dtype in (half, wide)] for _ in range(100)]
    a, c = torch.empty_like(b), torch.empty(edge, edge, device="cuda", dtype=wide)
    product, one, other = (torch.empty_like(c) for _ in range(3))
    # Converted here: no kernel of PyTorch's comes between the product and what multiplies it.
    b_wide = b.to(wide)
    found = []
    for first, second in given:
        a.copy_(first)
        c.zero_()
        product.fill_(float("nan"))
        gm.matmul(a, b, out=product)
        gm.matmul(product, b_wide, out=one)
        c.copy_(second)
        gm.matmul(product, c, out=other)
        found.append((one.clone(), other.clone()))
    for (first, second), (one, other) in zip(given, found, strict=True):
        exact = first.double() @ b.double()
        assert torch.equal(one.double(), exact @ b.double())
        assert torch.equal(other.double(), exact @ second.double())


def test_float64_behind_a_kernel_that_lets_the_next_one_begin(torch):
    """No such kernel writes float64: the words of two float32 results are read as one."""
    edge, half = 128, torch.bfloat16
    # So deep that the next launch has begun long before the product is written.
    b = small_integers(torch, DEPTH, 2 * edge, dtype=half)
    given = [small_integers(torch, edge, DEPTH, dtype=half) for _ in range(20)]
    a, words = torch.empty_like(given[0]), torch.empty(edge, 2 * edge, device="cuda", dtype=torch.float32)
    numbers, moved = words.view(torch.float64), shift(torch, edge, torch.float64)
    out = torch.empty(edge, edge, device="cuda", dtype=torch.float64)
    gm.matmul(a, b, out=words)
    assert overlapping(numbers, moved, out) == ("float64_gemm", True)
    found = []
    for first in given:
        a.copy_(first)
        words.fill_(1.0)
        gm.matmul(a, b, out=words)
        gm.matmul(numbers, moved, out=out)
        found.append(out.clone())
    for first, got in zip(given, found, strict=True):
        exact = (first.double() @ b.double()).float().view(torch.float64)
        assert torch.equal(got.cpu(), exact.cpu() @ moved.cpu())


def test_16_bit_matrices_of_odd_pitch_behind_a_kernel_that_lets_the_next_one_begin(torch):
    """A part of what a product wrote, with odd extents, goes to the kernel that copies by its threads."""
    half = torch.bfloat16
    b, second = small_integers(torch, DEPTH, 128, dtype=half), small_integers(torch, 99, 77, dtype=half)
    given = [small_integers(torch, 131, DEPTH, dtype=half) for _ in range(20)]
    a, product = torch.empty_like(given[0]), torch.empty(131, 128, device="cuda", dtype=half)
    out = torch.empty(131, 77, device="cuda", dtype=torch.float32)
    gm.matmul(a, b, out=product)
    assert overlapping(product[:, :99], second, out) == ("mma_sync_small", True)
    found = []
    for first in given:
        a.copy_(first)
        product.fill_(float("nan"))
        gm.matmul(a, b, out=product)
        gm.matmul(product[:, :99], second, out=out)
        found.append(out.clone())
    for first, got in zip(given, found, strict=True):
        exact = (first.double() @ b.double()).to(half).double()
        assert torch.equal(got.double(), exact[:, :99] @ second.double())
