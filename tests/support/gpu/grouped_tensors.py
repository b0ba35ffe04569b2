"""Operands of grouped products in PyTorch's memory on a GPU, and their results in float64."""

from __future__ import annotations


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
