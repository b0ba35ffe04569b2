"""Repeated products of PyTorch's tensors in host memory: without a plan, and refused as by one."""

from __future__ import annotations

import pytest

import gemmule as gm
from gemmule.api.calls.call_cache import CALLS
from gemmule.core.errors import GemmuleError
from support.fakes import planners

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")


@pytest.fixture(autouse=True)
def planned(monkeypatch):
    """Count the plans, with no call known."""
    if CALLS.library(torch.Tensor).host is None:
        pytest.skip("this PyTorch has no guards that pass the test")
    yield planners.counted(monkeypatch)
    CALLS.forget()


def x(dtype=torch.float32, shape=(4, 4)):
    return torch.ones(shape).to(dtype)


def base(a=None, b=None, out=None, **options):
    a, b, out = (x() if given is None else given for given in (a, b, out))
    return gm.gemm(a, b, out=out, **options)


KNOWN = {
    "float32": lambda: gm.matmul(torch.randn(4, 5), torch.randn(5, 6)),
    "bfloat16": lambda: gm.matmul(torch.randn(4, 5).bfloat16(), torch.randn(5, 6).bfloat16()),
    "float8": lambda: gm.matmul(x().to(torch.float8_e5m2), x().to(torch.float8_e5m2), out_dtype="float32"),
    "int8": lambda: gm.gemm(x(torch.int8), x(torch.int8)),
    "complex": lambda: gm.matmul(x(torch.complex64), x(torch.complex64)),
    "transposed": lambda: gm.matmul(torch.randn(5, 4).T, torch.randn(6, 5).T),
    "expanded": lambda: gm.matmul(torch.randn(4).expand(3, 4), torch.randn(4)),
    "vectors": lambda: gm.matmul(torch.randn(4), torch.randn(4)),
    "a batch": lambda: gm.matmul(torch.randn(7, 2, 2), torch.randn(2, 2)),
    "out": lambda: gm.matmul(torch.randn(4, 4), torch.randn(4, 4), torch.full((4, 4), torch.nan)),
    "added": lambda: gm.gemm(torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4), beta=2.0, alpha=0.5),
    "a bias": lambda: gm.gemm(torch.randn(4, 4), torch.randn(4, 4), bias=torch.randn(4), epilogue="gelu"),
}


@pytest.mark.parametrize("call", KNOWN.values(), ids=KNOWN)
def test_the_second_call_is_not_planned(call, planned):
    results = []
    for _ in range(3):
        torch.manual_seed(1)
        results.append(call())
    assert len(planned) == 1
    for result in results:
        assert type(result) is torch.Tensor
        assert result.dtype == results[0].dtype
        assert result.stride() == results[0].stride()
        assert result.untyped_storage().resizable()
        assert torch.equal(result.to(torch.complex128), results[0].to(torch.complex128))


def test_a_known_call_leaves_its_tensors_as_they_were(planned):
    """FSDP frees and allocates what its parameters lie in; autograd refuses a backward that would read what is gone."""
    a, b, out = x(), x(), x()
    for _ in range(3):
        base(a, b, out)
    assert len(planned) == 1
    assert out._version == 3
    for tensor in (a, b, out, gm.matmul(a, b), gm.matmul(a, b)):
        storage = tensor.untyped_storage()
        assert storage.resizable()
        storage.resize_(0)
        storage.resize_(4 * 16)
        tensor.copy_(torch.ones(4, 4))
    assert (base(a, b) == 4).all()
    weight = torch.ones(4, 4, requires_grad=True)
    kept = (weight * out).sum()
    base(a, b, out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()


class Subclass(torch.Tensor):
    pass


def inside(mode, call):
    with mode:
        return call()


def dual():
    with torch.autograd.forward_ad.dual_level():
        return base(torch.autograd.forward_ad.make_dual(x(), x()))


def meta():
    from torch._subclasses.fake_tensor import FakeTensorMode

    return inside(FakeTensorMode(), base)


MEMORY = torch.ones(6, 4)
PLANNED = {
    "a parameter": lambda: base(torch.nn.Parameter(x(), requires_grad=False)),
    "a negated view": lambda: base(torch._neg_view(x())),
    "other strides": lambda: base(x().T.contiguous().T),
    "other strides of out": lambda: base(out=torch.ones(4, 4).T),
    "another type": lambda: base(x(torch.float64)),
    "a scalar": lambda: base(alpha=3),
    "gradients off": lambda: inside(torch.no_grad(), lambda: base(x().requires_grad_())),
}
REFUSED = {
    "gradients": lambda: base(x().requires_grad_()),
    "gradients of out": lambda: base(out=x().requires_grad_()),
    "a tangent": dual,
    "vmap": lambda: torch.vmap(base)(x(shape=(2, 4, 4))),
    "a functional tensor": lambda: torch.func.functionalize(base)(x()),
    "a fake tensor": meta,
    "a sparse tensor": lambda: base(x().to_sparse()),
    "a nested tensor": lambda: base(torch.nested.nested_tensor([x(), x()])),
    "another device": lambda: base(x().to("meta")),
    "a negated out": lambda: base(out=torch._neg_view(x())),
    "out overlaps A": lambda: base(MEMORY[2:], out=MEMORY[:4]),
    "out overlaps B": lambda: base(b=MEMORY[2:], out=MEMORY[:4]),
    "an array of NumPy": lambda: base(b=x().numpy()),
    "a stream": lambda: base(stream=1),
}


@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:There is a performance drop", "ignore:.*torch.jit"
)
@pytest.mark.parametrize("call", [*PLANNED.values(), *REFUSED.values()], ids=[*PLANNED, *REFUSED])
def test_a_call_of_another_description_is_planned(call, planned):
    for _ in range(2):
        base()
    assert len(planned) == 1
    if call in REFUSED.values():
        with pytest.raises(GemmuleError):
            call()
    else:
        call()
    assert len(planned) == 2
    base()
    assert len(planned) == 2


def test_what_was_planned_while_gradients_were_off_requires_grad_later():
    a = x().requires_grad_()
    with torch.no_grad():
        for _ in range(3):
            gm.matmul(a, a)
    with pytest.raises(GemmuleError, match="a requires grad"):
        gm.matmul(a, a)


def test_within_inference_mode(planned):
    for mode in (torch.no_grad, torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            for _ in range(3):
                assert (gm.matmul(x(), x()) == 4).all()


def test_alternating_states_of_torch_are_each_planned_once(planned):
    for turn in range(4):
        gm.matmul(x(), x())
        with torch.inference_mode():
            gm.matmul(x(), x())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            gm.matmul(x(), x())
        if turn == 0:
            first = len(planned)
    assert len(planned) == first <= 3
