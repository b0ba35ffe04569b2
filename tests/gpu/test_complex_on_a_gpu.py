"""Complex products on hardware: conjugates, transposes and views of tensors as they lie, scalars, batches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import dtype_named
from support.oracle import assert_product, poisoned, random_matrix

torch = pytest.importorskip("torch")

DTYPES = ["complex64", "complex128"]
#: What is done to a factor before it is multiplied, none of which moves an element.
VIEWS = {
    "plain": lambda x: x,
    "conj": lambda x: x.conj(),
    "transposed": lambda x: x.mT.contiguous().mT,
    "adjoint": lambda x: x.mH.contiguous().resolve_conj().mH,
}


def on_gpu(x):
    return torch.from_numpy(x).cuda()


@pytest.mark.parametrize(("left", "right"), list(itertools.product(VIEWS, repeat=2)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_conjugates_and_transposes_of_tensors(dtype, left, right, rng):
    kind = dtype_named(dtype)
    a, b, c = (random_matrix(rng, kind, shape) for shape in ((70, 33), (33, 50), (70, 50)))
    da, db, dc = VIEWS[left](on_gpu(a)), VIEWS[right](on_gpu(b)), on_gpu(c)
    seen = [x.resolve_conj().cpu().numpy() for x in (da, db)]
    assert_product(gm.matmul(da, db).cpu().numpy(), *seen)
    out = on_gpu(poisoned(kind, (70, 50)))
    gm.gemm(da, db, dc, alpha=0.5 - 2j, beta=1j, out=out)
    assert_product(out.cpu().numpy(), *seen, c, 0.5 - 2j, 1j)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_conjugate_has_no_copy(dtype):
    x = torch.randn(64, 64, dtype=getattr(torch, dtype), device="cuda")
    plan = gm.matmul.plan(x.mH, x)
    assert plan.kernel == f"{dtype}_gemm"
    assert (plan.problem.a.conj, plan.problem.b.conj) == (True, False)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    gm.matmul(x.mH, x)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before + 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_repeated_calls_see_the_conjugate(dtype, rng):
    a, b = (random_matrix(rng, dtype_named(dtype), (40, 40)) for _ in range(2))
    da, db = on_gpu(a), on_gpu(b)
    for _ in range(3):
        assert_product(gm.matmul(da, db).cpu().numpy(), a, b)
        assert_product(gm.matmul(da.conj(), db).cpu().numpy(), a.conj(), b)
        assert_product(gm.matmul(da, db.conj()).cpu().numpy(), a, b.conj())


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_strides_and_no_products(dtype, rng):
    kind = dtype_named(dtype)
    a, b = random_matrix(rng, kind, (3, 2, 20, 12)), random_matrix(rng, kind, (2, 12, 18))
    da, db = on_gpu(a), on_gpu(b)
    assert_product(gm.matmul(da.conj(), db).cpu().numpy(), a.conj(), b)
    # Every second row and column: no row- or column-major matrix.
    got = gm.matmul(da[0, 0, ::2, ::2], db[0, ::2, ::2].conj()).cpu().numpy()
    assert_product(got, a[0, 0, ::2, ::2], b[0, ::2, ::2].conj())
    assert not gm.matmul(da[..., :0], db[..., :0, :]).any()
    # One element beyond an aligned address.
    late = torch.randn(20 * 12 + 1, dtype=getattr(torch, dtype), device="cuda")[1:].view(20, 12)
    assert_product(gm.matmul(late, db[0]).cpu().numpy(), late.cpu().numpy(), b[0])


@pytest.mark.parametrize("real", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("complex_first", [False, True])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("out_in_columns", [False, True])
def test_real_times_complex(real, complex_first, view, out_in_columns, rng):
    for dtype in DTYPES:
        kinds = (dtype, real) if complex_first else (real, dtype)
        wide = "complex128" if "complex128" in kinds or "float64" in kinds else "complex64"
        shapes = (3, 70, 33), (33, 50)
        a, b = (
            on_gpu(random_matrix(rng, dtype_named(kind.replace("bfloat16", "float32")), shape))
            for kind, shape in zip(kinds, shapes, strict=True)
        )
        a, b = (x.to(getattr(torch, kind)) for x, kind in zip((a, b), kinds, strict=True))
        a, b = (VIEWS[view](a), b) if complex_first else (a, VIEWS[view](b))
        out = on_gpu(poisoned(dtype_named(wide), (3, 50, 70) if out_in_columns else (3, 70, 50)))
        out = out.mT if out_in_columns else out
        seen = [x.resolve_conj().cpu().to(getattr(torch, wide)).numpy() for x in (a, b)]
        for _ in range(2):
            gm.gemm(a, b, alpha=-2, out=out)
            assert_product(out.cpu().numpy(), *seen, alpha=-2)
            out.fill_(np.nan)


def test_infinite_parts_stay_in_their_part():
    x = torch.tensor([[complex(np.inf, 1)], [complex(-1, -np.inf)]], dtype=torch.complex128, device="cuda")
    found = gm.matmul(torch.tensor([[2.0, 3.0]], dtype=torch.float64, device="cuda"), x).cpu().numpy()[0, 0]
    assert (found.real, found.imag) == (np.inf, -np.inf)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_of_the_other_complex_type(dtype, rng):
    a, b = (random_matrix(rng, dtype_named(dtype), shape) for shape in ((70, 33), (33, 50)))
    for way in (lambda x: x, lambda x: x.mT.contiguous().mT, lambda x: x.repeat(1, 2)[:, ::2]):
        for out_type in DTYPES:
            out = way(on_gpu(poisoned(dtype_named(out_type), (70, 50))))
            gm.matmul(on_gpu(a), on_gpu(b), out=out)
            assert_product(out.cpu().numpy(), a, b)


def test_it_can_fail(rng):
    a, b = (random_matrix(rng, dtype_named("complex64"), (33, 33)) for _ in range(2))
    got = gm.matmul(on_gpu(a).conj(), on_gpu(b)).cpu().numpy()
    with pytest.raises(AssertionError, match="times the bound"):
        assert_product(got, a, b)


def test_files_through_the_gpu(tmp_path, rng):
    kind = dtype_named("complex128")
    a, b = random_matrix(rng, kind, (700, 600)), random_matrix(rng, kind, (600, 500))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    paths = (tmp_path / f"{name}.npy" for name in ("a", "b", "out"))
    gm.outofcore.matmul(*paths, alpha=0.5 - 1j, executor="gpu", verify=True)
    assert_product(np.load(tmp_path / "out.npy"), a, b, alpha=0.5 - 1j)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_times_its_own_adjoint(dtype, rng):
    a = random_matrix(rng, dtype_named(dtype), (900, 40))
    x = on_gpu(a)
    for y, b in ((x.mH, a.conj().T), (x.mT, a.T)):
        out = on_gpu(poisoned(dtype_named(dtype), (900, 900)))
        assert_product(gm.matmul(x, y, out=out).cpu().numpy(), a, b)
