"""gemmule.torch.grouped_mm on the CPU: torch's meaning, gradients, and what PyTorch's tracers make of it."""

from __future__ import annotations

import functools

import pytest

from gemmule.core.errors import ArgumentError, DTypeError, ShapeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")

import gemmule as gm  # noqa: E402
import gemmule.torch as gt  # noqa: E402
from gemmule.torch import grouped  # noqa: E402

ENDS = (2, 2, 3, 9)


def operands(kind, transposed, extent=9):
    """Groups of rows, columns or k, the last ones empty of `extent` beyond the ends."""
    shapes = {
        "m": ((extent, 5), (4, 5, 3)),
        "n": ((4, 3, 5), (5, extent)),
        "k": ((3, extent), (extent, 5)),
    }[kind]
    found = []
    for shape, swapped in zip(shapes, transposed, strict=True):
        own = (*shape[:-2], shape[-1], shape[-2]) if swapped else shape
        x = torch.randn(own, dtype=torch.float64)
        found.append((x.mT if swapped else x).requires_grad_())
    return (*found, torch.tensor(ENDS, dtype=torch.int32))


def expected(kind, a, b):
    parts, start = [], 0
    for group, end in enumerate(ENDS):
        if kind == "m":
            parts.append(a[start:end] @ b[group])
        elif kind == "n":
            parts.append(a[group] @ b[:, start:end])
        else:
            parts.append(a[:, start:end] @ b[start:end])
        start = end
    return torch.stack(parts) if kind == "k" else torch.cat(parts, 0 if kind == "m" else 1)


KINDS = pytest.mark.parametrize("kind", ["m", "n", "k"])


@KINDS
@pytest.mark.parametrize("wanted", [0, 1])
def test_gradients_of_one_operand_alone(kind, wanted):
    given, offs = [list(operands(kind, (False, False))[:2]), torch.tensor(ENDS, dtype=torch.int32)]
    given[1 - wanted] = given[1 - wanted].detach()
    (got,) = torch.autograd.grad(gt.grouped_mm(*given, offs=offs).sum(), given[wanted])
    torch.testing.assert_close(got, torch.autograd.grad(expected(kind, *given).sum(), given[wanted])[0])


@KINDS
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)], ids=str)
def test_product_and_gradients(kind, transposed):
    a, b, offs = operands(kind, transposed)
    got, wanted = gt.grouped_mm(a, b, offs=offs), expected(kind, a, b)
    torch.testing.assert_close(got, wanted)
    weights = torch.randn_like(wanted)
    for mine, its in zip(
        torch.autograd.grad(got, (a, b), weights), torch.autograd.grad(wanted, (a, b), weights), strict=True
    ):
        torch.testing.assert_close(mine, its)
    assert torch.autograd.gradcheck(lambda a, b: gt.grouped_mm(a, b, offs=offs), (a, b))
    assert torch.autograd.gradgradcheck(lambda a, b: gt.grouped_mm(a, b, offs=offs), (a, b))


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@KINDS
@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True), (False, False)], ids=str)
def test_forward_mode(kind, given):
    a, b, offs = operands(kind, (False, False))
    a, b = a.detach(), b.detach()
    varied = tuple(x for x, varies in zip((a, b), given, strict=True) if varies)

    def of_varied(function):
        def run(*xs):
            xs = list(xs)
            return function(*(xs.pop(0) if varies else x for x, varies in zip((a, b), given, strict=True)))

        return run

    tangents = tuple(map(torch.randn_like, varied))
    mine, its = of_varied(lambda a, b: gt.grouped_mm(a, b, offs=offs)), of_varied(lambda a, b: expected(kind, a, b))
    if varied:
        torch.testing.assert_close(torch.func.jvp(mine, varied, tangents), torch.func.jvp(its, varied, tangents))
    else:
        # A level of forward mode where nothing has a tangent.
        with torch.autograd.forward_ad.dual_level():
            torch.testing.assert_close(mine(), its())


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@KINDS
def test_forward_mode_of_tensors_that_need_gradients(kind):
    a, b, offs = operands(kind, (False, False))
    assert torch.autograd.gradcheck(lambda a, b: gt.grouped_mm(a, b, offs=offs), (a, b), check_forward_ad=True)


@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented the batching rule")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@KINDS
@pytest.mark.parametrize("name", ["grad", "hessian", "forward over reverse", "reverse over forward", "vmap"])
def test_transforms_of_functions(kind, name):
    """torch.func's, in the way of PyTorch's own operators."""
    a, b, offs = operands(kind, (False, False))
    a, b = a.detach(), b.detach()
    tangent, func = torch.randn_like(a), torch.func

    def slope(f):
        return func.grad(lambda a: (f(a) ** 3).sum())

    transforms = {
        "grad": lambda f: slope(f)(a),
        "hessian": lambda f: func.grad(lambda a: (slope(f)(a) ** 2).sum())(a),
        "forward over reverse": lambda f: func.jvp(slope(f), (a,), (tangent,)),
        "reverse over forward": lambda f: func.grad(lambda a: (func.jvp(f, (a,), (tangent,))[1] ** 2).sum())(a),
        "vmap": lambda f: func.vmap(slope(f))(torch.stack([a, tangent])),
    }
    for of_other in (False, True):
        mine, its = (
            transforms[name](lambda a: f(a, a.sum() * b) if of_other else f(a, b))  # noqa: B023
            for f in (lambda a, b: gt.grouped_mm(a, b, offs=offs), lambda a, b: expected(kind, a, b))
        )
        torch.testing.assert_close(mine, its)


def test_nothing_is_added_beyond_the_last_end():
    a, b, offs = operands("m", (False, False), extent=12)
    got = gt.grouped_mm(a, b, offs=offs)
    assert (got[9:] == 0).all()
    got.sum().backward()
    assert (a.grad[9:] == 0).all()


def test_gradients_of_weights_lie_as_the_weights():
    a, b, offs = operands("m", (False, True))
    (grad,) = torch.autograd.grad(gt.grouped_mm(a, b, offs=offs).sum(), b)
    assert grad.stride() == b.stride()


@KINDS
@pytest.mark.parametrize("columns", [64, 71])
@pytest.mark.parametrize("transposed_grad", [False, True])
def test_gradients_of_what_a_kernel_takes_are_products_that_it_takes(kind, columns, transposed_grad, monkeypatch):
    """16-bit operands whose product Hopper's kernel takes: each product of the backward pass is planned for it."""

    def planned(a, b, offs):
        gm.grouped_gemm.plan(*(x.detach() for x in (a, b, offs)), executor="vgpu")
        return compute(a, b, offs)

    compute = grouped._compute
    monkeypatch.setattr(grouped, "_compute", planned)
    extent, random = 73, functools.partial(torch.randn, dtype=torch.bfloat16)
    a, b = {
        "m": (random(extent, 64), random(4, columns, 64).mT),
        "n": (random(4, columns, 64), random(extent, 64).mT),
        "k": (random(extent, 64).mT, random(extent, 72)[:, :columns]),
    }[kind]
    a, b = (x.detach().requires_grad_() for x in (a, b))
    got = gt.grouped_mm(a, b, offs=torch.tensor(ENDS, dtype=torch.int32))
    grad = random(*got.shape)
    grad = grad.mT.contiguous().mT if transposed_grad else grad
    for mine, x in zip(torch.autograd.grad(got, (a, b), grad), (a, b), strict=True):
        assert mine.shape == x.shape
    assert torch.isfinite(mine).all()


def test_a_batch_without_offsets():
    a, b = torch.randn(3, 4, 5), torch.randn(3, 5, 6)
    torch.testing.assert_close(gt.grouped_mm(a, b), a @ b)


@KINDS
def test_the_operator_is_as_pytorch_wants_it(kind):
    torch.library.opcheck(torch.ops.gemmule.grouped_mm.default, operands(kind, (False, False)))


def test_compiled_as_it_is():
    a, b, offs = operands("m", (False, True))
    compiled = torch.compile(lambda a, b: gt.grouped_mm(a, b, offs=offs) * 2, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(a, b), 2 * expected("m", a, b))


def test_16_bit_floats_are_rounded_once():
    a, b, offs = operands("m", (False, False))
    half = [x.detach().to(torch.bfloat16) for x in (a, b)]
    wanted = expected("m", *(x.double() for x in half)).to(torch.bfloat16)
    torch.testing.assert_close(gt.grouped_mm(*half, offs=offs), wanted)


def test_what_does_not_fit():
    a, b, offs = operands("m", (False, False))
    with pytest.raises(ShapeError, match="without offs both have 3 dimensions"):
        gt.grouped_mm(a, b)
    with pytest.raises(ShapeError, match=r"^mat_a has shape .* with offs one has 2 dimensions, the other 2 or 3$"):
        gt.grouped_mm(b, b, offs=offs)
    with pytest.raises(ArgumentError, match="bias"):
        gt.grouped_mm(a, b, offs=offs, bias=b)
    with pytest.raises(DTypeError, match="out_dtype"):
        gt.grouped_mm(a, b, offs=offs, out_dtype=torch.float32)
    with pytest.raises(DTypeError, match=r"^out_dtype=torch\.float32 differs from the operands' torch\.float64"):
        gt.grouped_mm(a, b, offs=offs, out_dtype="float32")
    assert gt.grouped_mm(a, b, offs=offs, out_dtype="float64").dtype == torch.float64
    with pytest.raises(ArgumentError, match=r"^mat_a has layout torch\.sparse_coo; pass mat_a\.to_dense"):
        gt.grouped_mm(a.detach().to_sparse(), b, offs=offs)
    with pytest.raises(DTypeError, match=r"^offs is int64 of shape \(4,\); give one dimension of int32, offs\.int\(\)"):
        gt.grouped_mm(a, b, offs=offs.long())
    with pytest.raises(DTypeError, match=r"^offs is int32 of shape \(1, 4\); give one dimension of int32$"):
        gt.grouped_mm(a, b, offs=offs[None])
    with pytest.raises(ArgumentError, match=r"offsets\[1\] is 1; it must be at least 2"):
        gt.grouped_mm(a, b, offs=torch.tensor([2, 1, 3, 9], dtype=torch.int32))
    with pytest.raises(ArgumentError, match=r"offsets\[3\] is 10; it must be at most 9"):
        gt.grouped_mm(a, b, offs=torch.tensor([2, 2, 3, 10], dtype=torch.int32))
    with pytest.raises(ShapeError, match=r"^mat_a has . columns and mat_b . rows; the last dimension of mat_a and"):
        gt.grouped_mm(a[:, 1:], b, offs=offs)
    with pytest.raises(ShapeError, match=r"^offs has 4 ends and mat_b 3 matrices; .*; leave out the leading 0$"):
        gt.grouped_mm(a, b[:3], offs=offs)


def test_groups_of_types_that_no_grouped_product_takes():
    a, b, offs = torch.ones(6, 4), torch.ones(2, 4, 3), torch.tensor([2, 6], dtype=torch.int32)
    with pytest.raises(DTypeError, match=r"^mat_a is float32 and mat_b is float16; convert one of them$"):
        gt.grouped_mm(a, b.half(), offs=offs)
    with pytest.raises(DTypeError, match=r"^mat_a is int32; gemmule.torch takes .*\. Convert it$"):
        gt.grouped_mm(a.int(), b.int(), offs=offs)


def test_complex_groups_are_refused():
    a, b = torch.ones(6, 4, dtype=torch.complex64), torch.ones(2, 4, 3, dtype=torch.complex64)
    with pytest.raises(DTypeError, match=r"mat_a is torch.complex64; grouped products take real types"):
        gt.grouped_mm(a, b, offs=torch.tensor([2, 6], dtype=torch.int32))
