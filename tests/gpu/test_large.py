"""More than 2**31 elements: offsets and extents beyond 32 bits."""

from __future__ import annotations

import pytest

import gemmule as gm

pytestmark = pytest.mark.large
N = 50_000


@pytest.fixture
def big(torch):
    free, _ = torch.cuda.mem_get_info()
    if free < 16 * 2**30:
        pytest.skip("needs 16 GiB of free device memory")
    yield torch.randint(-128, 128, (N, N), dtype=torch.int8, device="cuda")
    torch.cuda.empty_cache()


def rows_of(torch):
    return torch.tensor([0, 1, 17, 42_949, 42_950, 43_000, N - 2, N - 1], device="cuda")


@pytest.mark.parametrize("transposed", [False, True])
def test_a_large_input(torch, big, transposed):
    x = big.T if transposed else big
    b = torch.randint(-128, 128, (N, 3), dtype=torch.int8, device="cuda")
    got = gm.gemm(x, b)
    rows = rows_of(torch)
    expected = x[rows].double() @ b.double()
    assert torch.equal(got[rows].double(), expected)


def test_a_large_output(torch):
    a = torch.randint(-128, 128, (N, 5), dtype=torch.int8, device="cuda")
    b = torch.randint(-128, 128, (5, N), dtype=torch.int8, device="cuda")
    out = torch.full((N, N), 99, dtype=torch.int8, device="cuda")
    gm.matmul(a, b, out=out)
    rows = rows_of(torch)
    assert torch.equal(out[rows], (a[rows].double() @ b.double()).long().to(torch.int8))
    assert torch.equal(out[:, rows], (a.double() @ b[:, rows].double()).long().to(torch.int8))


def test_an_extent_beyond_32_bits(torch):
    rows = 2**31 + 100
    a = torch.randint(-128, 128, (rows, 1), dtype=torch.int8, device="cuda")
    out = gm.matmul(a, torch.full((1, 1), 3, dtype=torch.int8, device="cuda"))
    assert out.shape == (rows, 1)
    for part in (slice(0, 1000), slice(2**31 - 500, rows), slice(rows // 2, rows // 2 + 1000)):
        assert torch.equal(out[part], a[part] * 3)


def test_a_large_batch(torch):
    batch = 2**29 + 3
    a = torch.randint(-128, 128, (batch, 2, 2), dtype=torch.int8, device="cuda")
    b = torch.randint(-128, 128, (2, 2), dtype=torch.int8, device="cuda")
    got = gm.matmul(a, b)
    for part in (slice(0, 1000), slice(batch // 2, batch // 2 + 1000), slice(batch - 1000, batch)):
        assert torch.equal(got[part], (a[part].double() @ b.double()).long().to(torch.int8))


def test_a_large_transpose(torch, big):
    got = gm.transpose(big)
    assert torch.equal(got, big.T)


def test_a_long_transpose(torch):
    x = torch.randint(0, 255, (2**31 + 3, 2), dtype=torch.uint8, device="cuda")
    got = gm.transpose(x)
    assert torch.equal(got[1], x[:, 1])
    assert torch.equal(got[0], x[:, 0])
