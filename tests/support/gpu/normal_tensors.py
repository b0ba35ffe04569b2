"""Normal random tensors of PyTorch on a GPU, and products held against float64."""

from __future__ import annotations

# The reference of float64 is rounded as often as the result.
DTYPES = {"float64": 2**-49, "float32": 2**-20, "float16": 2**-9, "bfloat16": 2**-6}


def normal(torch, dtype, *shapes):
    return [torch.randn(shape, device="cuda", dtype=torch.float64).to(getattr(torch, dtype)) for shape in shapes]


def assert_close(torch, got, expected, dtype, k):
    """Hold a result against float64: a rounding of the output, and those of sums of k products."""
    scale = expected.abs().max().item() + k**0.5
    assert torch.isfinite(got).all()
    assert (got.double() - expected).abs().max().item() <= DTYPES[dtype] * scale
