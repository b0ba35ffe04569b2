"""The public functions on PyTorch tensors in host memory."""

from __future__ import annotations

import pytest

import gemmule as gm
from gemmule.core.errors import ArgumentError, DTypeError, GemmuleError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")

FLOATS = ["float64", "float32", "float16", "bfloat16"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_products_stay_in_the_library_and_on_the_device(dtype):
    a, b = torch.randn(3, 17, 33).to(getattr(torch, dtype)), torch.randn(33, 9).to(getattr(torch, dtype))
    got = gm.matmul(a, b)
    assert isinstance(got, torch.Tensor)
    assert got.dtype == a.dtype
    torch.testing.assert_close(got.double(), a.double() @ b.double(), rtol=0.02, atol=0.1)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_8_bit_floats(dtype):
    a, b = (torch.randint(-4, 5, (16, 16)).float() for _ in range(2))
    got = gm.matmul(a.to(getattr(torch, dtype)), b.to(getattr(torch, dtype)), out_dtype=torch.float32)
    assert torch.equal(got, a @ b)


def test_int8_strides_and_out():
    a = torch.randint(-128, 128, (20, 30), dtype=torch.int8).T
    out = torch.full((30, 30), 7, dtype=torch.int32)
    assert gm.gemm(a, a.T, out=out) is out
    assert torch.equal(out, (a.long() @ a.T.long()).int())


def test_transposes():
    x = torch.randn(2, 3, 5).to(torch.bfloat16)
    got = gm.matrix_transpose(x)
    assert got.is_contiguous()
    assert torch.equal(got, x.transpose(1, 2))
    assert torch.equal(gm.transpose(x), x.permute(2, 1, 0))


@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:ComplexHalf", "ignore:.*quantize_per_tensor"
)
def test_refusals():
    a = torch.ones(3, 3)
    with pytest.raises(ArgumentError, match="requires grad"):
        gm.matmul(a.clone().requires_grad_(), a)
    with torch.no_grad():
        gm.matmul(a.clone().requires_grad_(), a)
    with pytest.raises(ArgumentError, match="a comes from torch and b from numpy"):
        gm.matmul(a, a.numpy())
    with pytest.raises(ArgumentError, match="sparse"):
        gm.matmul(a.to_sparse(), a)
    with pytest.raises(DTypeError, match="uint16"):
        gm.matmul(a, a, out_dtype="uint16")
    with pytest.raises(ArgumentError, match="meta"):
        gm.matmul(torch.ones(3, 3, device="meta"), torch.ones(3, 3, device="meta"))
    for given, says in (
        ((torch.nested.nested_tensor([a, a]), a), "a is a nested tensor; multiply its parts, a.unbind"),
        ((a, torch.nested.nested_tensor([a, a], layout=torch.jagged)), "b is a nested tensor"),
        ((a, a.to(torch.complex32)), "b is complex32"),
        ((torch.quantize_per_tensor(a, 0.1, 0, torch.qint8), a), r"a is qint8, .*; pass a\.dequantize\(\)$"),
    ):
        with pytest.raises(GemmuleError, match=says):
            gm.matmul(*given)


def test_the_message_says_which_argument():
    a, needy = torch.ones(3, 3), torch.ones(3, 3, requires_grad=True)
    for given, out in (((needy, a), None), ((a, needy), None), ((a, a), needy)):
        name = ("a", "b", "out")[[x is needy for x in (*given, out)].index(True)]
        with pytest.raises(ArgumentError, match=rf"^{name} requires grad, .*pass {name}.detach"):
            gm.matmul(*given, out=out)
    with pytest.raises(ArgumentError, match=r"^bias requires grad"):
        gm.gemm(a, a, bias=needy[0])
    with pytest.raises(ArgumentError, match=r"^epilogue_args\['w'\] requires grad"):
        gm.gemm(a, a, epilogue=lambda acc, w: acc * w, epilogue_args={"w": needy})


LAZY = {
    "conjugated": lambda x: x.conj(),
    "conjugate transposed": lambda x: x.mH,
    "negated": torch._neg_view,
    "both": lambda x: torch._neg_view(x.mH),
    "zeros": torch.zeros_like,
}


@pytest.mark.parametrize("name", LAZY)
@pytest.mark.parametrize("role", ["a", "b", "c"])
def test_lazy_views_are_resolved(name, role):
    given = {name: torch.randn(5, 5, dtype=torch.complex128) for name in "abc"}
    lazy = torch._efficientzerotensor(5, 5, dtype=torch.complex128) if name == "zeros" else LAZY[name](given[role])
    out = torch.full((5, 5), torch.nan, dtype=torch.complex128)
    plain = given | {role: LAZY[name](given[role]).clone().resolve_conj().resolve_neg()}
    given[role] = lazy
    assert gm.gemm(given["a"], given["b"], given["c"], alpha=2, beta=3j, out=out) is out
    torch.testing.assert_close(out, 2 * (plain["a"] @ plain["b"]) + 3j * plain["c"])
    if role == "a":
        torch.testing.assert_close(gm.matrix_transpose(lazy), plain["a"].mT)


def test_a_negated_view_of_real_numbers():
    z = torch.randn(4, 6, dtype=torch.complex64)
    lazy = z.conj().imag
    assert lazy.is_neg()
    assert torch.equal(gm.transpose(lazy), -z.imag.T)
    torch.testing.assert_close(gm.matmul(lazy, z.real.T), -z.imag @ z.real.T)


def test_a_plan_resolves_what_the_view_shows_at_each_run():
    z, b = torch.randn(4, 4, dtype=torch.complex128), torch.randn(4, 4, dtype=torch.complex128)
    plans = [gm.matmul.plan(z.mH, b), gm.matrix_transpose.plan(z.mH)]
    for _ in range(2):
        torch.testing.assert_close(plans[0].execute(), z.mH @ b)
        assert torch.equal(plans[1].execute(), z.conj())
        z.copy_(torch.randn(4, 4, dtype=torch.complex128))


def test_a_lazy_output_is_refused():
    z = torch.randn(4, 4, dtype=torch.complex128)
    before = z.clone()
    for out in (z.conj(), z.mH, torch._neg_view(z)):
        for call in (lambda out: gm.matmul(before, before, out=out), lambda out: gm.transpose(before, out=out)):
            with pytest.raises(ArgumentError, match=r"^out is a lazily conjugated or negated view.*copy_"):
                call(out)
    assert torch.equal(z, before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int8", "complex64", "bool", "uint16"])
def test_storages_can_be_resized_afterwards(dtype):
    """FSDP frees and allocates what its parameters lie in, and so do checkpoints that are loaded late."""
    a, b, out = (torch.ones(4, 4).to(getattr(torch, dtype)) for _ in range(3))
    assert gm.matmul(a, b, out=out) is out
    new = gm.matmul(a, b)
    assert torch.equal(new.float() if dtype == "float8_e4m3fn" else new, out.float() if "float8" in dtype else out)
    gm.transpose(a)
    for x in (a, b, out, new):
        storage = x.untyped_storage()
        size = storage.size()
        assert storage.resizable()
        storage.resize_(0)
        storage.resize_(size)
        x.copy_(torch.ones(4, 4))
    assert gm.gemm(a, b, out_dtype="float32" if "float" in dtype else None)[0, 0] == (1 if dtype == "bool" else 4)


def test_parameters_of_fsdp_can_be_freed_and_gathered():
    """As FSDP does it: the flat parameter's storage is freed behind the forward and filled before the next one."""
    flat = torch.nn.Parameter(torch.randn(12))
    whole, x = flat.detach().clone(), torch.randn(5, 4)
    weight = flat.detach()[:12].view(3, 4)
    for _ in range(2):
        torch.testing.assert_close(gm.matmul(x, weight.mT), x @ whole.view(3, 4).mT)
        flat.data.untyped_storage().resize_(0)
        flat.data.untyped_storage().resize_(48)
        flat.data.copy_(whole)


def test_a_plan_whose_memory_is_gone_says_so():
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    plan = gm.matmul.plan(a, b)
    torch.testing.assert_close(plan.execute(), a @ b)
    b.untyped_storage().resize_(0)
    with pytest.raises(ArgumentError, match=r"^the storage of b was freed or moved.*plan again"):
        plan.execute()


def test_autograd_hears_of_a_write_to_out():
    """As of an operation of PyTorch's in place: a backward must not read what was overwritten."""
    for write in (
        lambda y: gm.matmul(torch.ones(3, 3), torch.ones(3, 3), out=y),
        lambda y: gm.transpose(torch.ones(3, 3), out=y),
    ):
        y = torch.randn(3, 3, requires_grad=True)
        squares = y * y
        with torch.no_grad():
            write(y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            squares.sum().backward()
    with torch.inference_mode():
        out = torch.empty(3, 3)
    assert gm.matmul(torch.ones(3, 3), torch.ones(3, 3), out=out) is out


def _in_a_mode(mode, x):
    with mode:
        return gm.matmul(x, x)


def _dual(x):
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        return gm.matmul(forward_ad.make_dual(x, x), x)


def _traced(mode):
    from torch.fx.experimental.proxy_tensor import make_fx

    return lambda x: make_fx(lambda y: gm.matmul(y, y), tracing_mode=mode)(x)


def _fake(x):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return gm.matmul(torch.empty(3, 3), torch.empty(3, 3))


def _fake_on_a_gpu(x):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        on_gpu = torch.empty(3, 3, device="cuda")
    return gm.matmul(on_gpu, on_gpu)


def _real_within_fake(x):
    from torch._subclasses.fake_tensor import FakeTensorMode

    return _in_a_mode(FakeTensorMode(allow_non_fake_inputs=True), x)


class _Multiplied(torch.nn.Module):
    def forward(self, x):
        return gm.matmul(x, x)


UNDER = {
    "vmap": lambda x: torch.func.vmap(lambda y: gm.matmul(x, y))(torch.stack([x, x])),
    "the vmap of batched gradients": lambda x: torch._vmap_internals._vmap(lambda y: gm.matmul(x, y))(
        torch.stack([x, x])
    ),
    "grad": lambda x: torch.func.grad(lambda y: gm.matmul(y, x).sum())(x),
    "jvp": lambda x: torch.func.jvp(lambda y: gm.matmul(y, x), (x,), (x,)),
    "a dual level": _dual,
    "functionalize": lambda x: torch.func.functionalize(lambda y: gm.matmul(y, x))(x),
    "fake tensors": _fake,
    "fake tensors that claim a GPU": _fake_on_a_gpu,
    "a fake mode": _real_within_fake,
    "a trace of real tensors": _traced("real"),
    "a trace of fake tensors": _traced("fake"),
    "jit": lambda x: torch.jit.trace(lambda y: gm.matmul(y, y), (x,)),
    "export": lambda x: torch.export.export(_Multiplied(), (x,)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", UNDER)
def test_under_transforms_the_remedy_is_named(name):
    """Nothing is left out of a trace, a gradient or a tangent without a word."""
    with pytest.raises(ArgumentError, match=r"^[ab] .*gemmule\.torch"):
        UNDER[name](torch.randn(3, 3))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_compiled_functions_call_it(dtype):
    """Nothing of what computes on the host is traced itself."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: gm.matmul(x, x) + 1, backend="aot_eager")
    for _ in range(2):
        x = torch.randint(-3, 4, (5, 5)).to(getattr(torch, dtype))
        assert torch.equal(compiled(x), gm.matmul(x, x) + 1)


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_scalars_without_dimensions(kind):
    def number(value):
        x = torch.tensor(value, dtype=torch.float64)
        return x if kind == "torch" else x.numpy()

    a, b, c = (torch.randn(3, 3, dtype=torch.float64) for _ in range(3))
    torch.testing.assert_close(gm.gemm(a, b, c, alpha=number(1.5), beta=number(-2.0)), 1.5 * (a @ b) - 2 * c)
    with pytest.raises(ArgumentError, match=r"^alpha is of type Tensor, not a number.* without dimensions$"):
        gm.gemm(a, b, alpha=torch.ones(1))
    needy = torch.tensor(2.0, requires_grad=True)
    with pytest.raises(ArgumentError, match=r"^alpha cannot be read as a number .*requires grad.*scale an operand"):
        gm.gemm(a, b, alpha=needy)


def test_the_ends_of_groups_have_the_remedy_of_the_library():
    with pytest.raises(gm.DTypeError, match=r"offsets is int64 .* one dimension of int32, offsets\.int\(\)$"):
        gm.grouped_gemm(torch.ones(9, 8), torch.ones(3, 8, 4), torch.tensor([2, 2, 7]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
@pytest.mark.parametrize("offset", [0, 1, 3, 16])
def test_a_view_is_as_aligned_as_its_place_in_the_storage(dtype, offset):
    # For plans of a chip and on the virtual GPU, whatever the storage's own address is.
    from gemmule.runtime.arrays.torch_arrays import TorchLibrary
    from gemmule.vgpu.arrays import virtual_address

    view = torch.zeros(64 + offset, dtype=dtype)[offset:].view(8, 8)
    host = TorchLibrary().view(view, None, "a").host
    assert virtual_address(host) == offset * view.element_size()
    strided = view.as_strided((3, 2), (4, 2), offset + 2)
    assert virtual_address(TorchLibrary().view(strided, None, "a").host) == (offset + 2) * view.element_size()
