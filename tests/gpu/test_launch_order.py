"""Launches that may begin while the one in front of them ends: each reads what that one wrote, and not too early."""

from __future__ import annotations

import pytest

import gemmule as gm
from gemmule.runtime.execute import launches_of


def overlapping(a, b, out):
    """Return whether the launch of a product may begin before the one in front has ended."""
    plan = gm.plan(a, b, out=out)
    (step,) = launches_of(plan.problem, plan.choice, 0, (*plan.places, "d")).steps()
    return plan.kernel, step.launch.overlaps


def small_integers(torch, *shape, dtype):
    return torch.randint(-2, 3, shape, device="cuda").to(dtype)


@pytest.mark.parametrize("captured", [False, True], ids=["queued", "captured"])
@pytest.mark.parametrize("edge", [32, 64, 131, 256])
def test_products_of_what_the_last_product_wrote(torch, edge, captured):
    """Permutations and signs move exact numbers from buffer to buffer, each of which is written again at once."""
    wide = torch.float32
    shifts = []
    for _ in range(2):
        shift = torch.zeros(edge, edge, device="cuda", dtype=wide)
        places = torch.randperm(edge, device="cuda")
        shift[torch.arange(edge, device="cuda"), places] = torch.randint(0, 2, (edge,), device="cuda").to(wide) * 2 - 1
        shifts.append(shift)
    x = small_integers(torch, edge, edge, dtype=wide)
    buffers = [torch.full_like(x, float("nan")) for _ in range(2)]
    assert overlapping(x, shifts[0], buffers[0]) == ("g07_cp_async", True)

    def steps():
        gm.matmul(x, shifts[0], out=buffers[0])
        for _ in range(40):
            gm.matmul(buffers[0], shifts[1], out=buffers[1])
            gm.matmul(buffers[1], shifts[0], out=buffers[0])

    steps()
    for _ in range(5):
        x.copy_(small_integers(torch, edge, edge, dtype=wide))
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
