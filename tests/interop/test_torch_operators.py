"""gemmule.torch on the CPU: what it computes, and what PyTorch's tracers make of it."""

from __future__ import annotations

import pytest

from gemmule.core.errors import ArgumentError, DTypeError, ShapeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")


import gemmule.torch as gt  # noqa: E402
from gemmule.torch.product import gemm  # noqa: E402
from support.double_tensors import doubles  # noqa: E402

DTYPES = {"float64": 1e-13, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (5, 1), (1, 1), (7,), (1,), ()], ids=str)
def test_addmm_is_that_of_torch(dtype, shape):
    given, a, b = (torch.randn(shape).to(getattr(torch, dtype)) for shape in (shape, (5, 9), (9, 7)))
    got = gt.addmm(given, a, b, beta=0.5, alpha=-2)
    assert (got.dtype, got.shape) == (a.dtype, (5, 7))
    expected = torch.addmm(given.double(), a.double(), b.double(), beta=0.5, alpha=-2)
    torch.testing.assert_close(got.double(), expected, rtol=DTYPES[dtype], atol=DTYPES[dtype])


def test_addmm_takes_any_strides_and_does_not_write_its_input():
    given, a, b = torch.randn(7, 5).T, torch.randn(9, 5).T, torch.randn(9, 14)[:, ::2]
    before = given.clone()
    torch.testing.assert_close(gt.addmm(given, a, b), torch.addmm(given, a, b))
    assert torch.equal(given, before)
    given = torch.full((5, 7), torch.nan)
    torch.testing.assert_close(gt.addmm(given, a, b, beta=0), a @ b)


@pytest.mark.parametrize("shape", [(3, 5, 7), (5, 7), (3, 1, 7), (3, 5, 1), (7,)], ids=str)
def test_baddbmm_is_that_of_torch(shape):
    given, a, b = doubles(shape, (3, 5, 9), (3, 9, 7), grad=False)
    torch.testing.assert_close(
        gt.baddbmm(given, a, b, beta=2, alpha=0.5), torch.baddbmm(given, a, b, beta=2, alpha=0.5)
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [((4,), (4,)), ((4,), (4, 3)), ((2, 4), (4,)), ((4,), (5, 4, 3)), ((5, 2, 4), (4,)), ((2, 1, 3, 4), (5, 4, 6)),
     ((0, 4), (4, 3)), ((3, 0), (0, 2)), ((2, 0, 4), (4, 5))],
    ids=str,
)  # fmt: skip
def test_matmul_has_the_shapes_of_torch(first, second):
    a, b = doubles(first, second)
    got, expected = gt.matmul(a, b), torch.matmul(a, b)
    torch.testing.assert_close(got, expected)
    weights = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(got, (a, b), weights), torch.autograd.grad(expected, (a, b), weights), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shape", [(9,), (5, 9), (3, 5, 9), (2, 3, 5, 9), (0, 9)], ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_is_that_of_torch(shape, with_bias):
    x, weight, bias = doubles(shape, (7, 9), (7,))
    bias = bias if with_bias else None
    torch.testing.assert_close(gt.linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias))


@pytest.mark.parametrize("shapes", [[(3, 5), (5, 4), None], [(2, 3, 5), (5, 4), (4,)], [(2, 3, 5), (2, 5, 4), (3, 1)]])
def test_the_operator_is_what_it_says(shapes):
    a, b, c = (None if shape is None else doubles(shape)[0] for shape in shapes)
    for operands in ((a, b, c), (a.detach().mT.contiguous().mT, b.detach(), c)):
        torch.library.opcheck(gemm, (*operands, 1.5, 0.5, None, None))


def test_an_output_of_another_type():
    a, b = (torch.randn(6, 6).to(torch.bfloat16).requires_grad_() for _ in range(2))
    got = gemm(a, b, None, 1.0, 0.0, torch.float32, None)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, a.float() @ b.float(), rtol=1e-5, atol=1e-5)
    got.sum().backward()
    assert a.grad.dtype == torch.bfloat16
    torch.library.opcheck(gemm, (a, b, None, 1.0, 0.0, torch.float32, None))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_without_a_break(dynamic):
    def function(x, weight, bias, other):
        hidden = gt.linear(x, weight, bias).relu()
        return gt.addmm(bias[:3], gt.matmul(hidden, other)[0], hidden[0].mT @ hidden[0][:, :3]).sum()

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (4, 6):
        operands = doubles((2, rows, 5), (7, 5), (7,), (7, 7))
        results = []
        for one in (function, compiled):
            value = one(*operands)
            results.append((value, *torch.autograd.grad(value, operands)))
        for got, expected in zip(*results, strict=True):
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("function", "shapes", "in_dims"),
    [
        (gt.matmul, [(3, 6, 5), (5, 2)], (1, None)),
        (gt.matmul, [(3, 6, 5), (4, 5, 2)], (None, 0)),
        (gt.matmul, [(4, 6, 5), (3, 5, 2, 4)], (0, 3)),
        (gt.addmm, [(6, 2), (7, 5), (5, 2)], (0, None, None)),
        (gt.addmm, [(7, 1), (7, 5), (5, 2, 4)], (None, None, 2)),
        (gt.baddbmm, [(3, 7, 2), (3, 4, 7, 5), (3, 5, 2)], (None, 1, None)),
    ],
)
def test_vmap(function, shapes, in_dims):
    operands = doubles(*shapes, grad=False)
    got = torch.func.vmap(function, in_dims=in_dims)(*operands)
    size = next(x.shape[dim] for x, dim in zip(operands, in_dims, strict=True) if dim is not None)
    named = getattr(torch, function.__name__)
    one_by_one = [
        named(*(x if dim is None else x.select(dim, i) for x, dim in zip(operands, in_dims, strict=True)))
        for i in range(size)
    ]
    torch.testing.assert_close(got, torch.stack(one_by_one))


def test_autocast():
    x, weight, bias = torch.randn(3, 5), torch.randn(4, 5, requires_grad=True), torch.randn(4)
    with torch.autocast("cpu", torch.bfloat16):
        got = gt.linear(x, weight, bias)
        assert gt.matmul(x.double(), x.double().T).dtype == torch.float64
    assert got.dtype == torch.bfloat16
    got.sum().backward()
    assert weight.grad.dtype == torch.float32
    torch.testing.assert_close(got.float(), torch.nn.functional.linear(x, weight, bias), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("devices", [("cuda:0", "cpu", None), ("cuda:0", "cuda:1", None), ("cuda:0", "cuda:0", "cpu")])
def test_several_devices_are_refused_where_a_model_is_traced(devices):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, weight, bias = (
            None if device is None else torch.empty(*shape, device=device)
            for device, shape in zip(devices, ((8, 16), (4, 16), (4,)), strict=True)
        )
        name, other = ("b", devices[1]) if bias is None else ("c", devices[2])
        with pytest.raises(ArgumentError, match=f"a is on cuda:0 and {name} is on {other}; move one of them"):
            gt.linear(x, weight, bias)


def test_a_bias_is_not_copied_from_another_device():
    x, weight, bias = torch.ones(2, 3), torch.ones(3, 4), torch.ones(4, device="meta")
    with pytest.raises(ArgumentError, match="a is on cpu and c is on meta; move one of them"):
        gt.product.compute(x, weight, bias, 1.0, 1.0, None, None)


def test_shapes_are_inferred_on_the_meta_device():
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).to("meta")
    gt.replace_linear(model)
    x = torch.empty(3, 4, 5, device="meta")
    for got, shape in (
        (model(x), (3, 4, 2)),
        (gt.matmul(x, x.mT), (3, 4, 4)),
        (gt.addmm(x[0, 0], x[0].mT @ x[1], x[0].mT @ x[1]), (5, 5)),
    ):
        assert (got.device.type, tuple(got.shape)) == ("meta", shape)
    model(x).sum().backward()
    assert model[0].weight.grad.shape == (8, 5)


def test_replaced_layers_are_the_same_objects():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.GELU(), torch.nn.Sequential(torch.nn.Linear(8, 2)))
    x = torch.randn(3, 5)
    expected, parameters, layer = model(x), list(model.parameters()), model[0]
    calls = []
    layer.register_forward_hook(lambda *_: calls.append(1))
    assert gt.replace_linear(model, where=lambda name, _: name != "2.0") == ("0",)
    assert gt.replace_linear(model, precision="tf32") == ("2.0",)
    assert gt.replace_linear(model) == ()
    assert model[0] is layer
    assert isinstance(layer, gt.Linear)
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    torch.testing.assert_close(model(x), expected)
    assert calls == [1]
    assert "precision='tf32'" in repr(model[2][0])
    model.load_state_dict(model.state_dict())
    single = torch.nn.Linear(5, 2)
    assert gt.replace_linear(single) == ("",)


def test_layers_that_compute_something_else_are_left_alone():
    class Doubled(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = torch.nn.Sequential(Doubled(3, 3))
    assert gt.replace_linear(model) == ()
    assert type(model[0]) is Doubled


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor")
@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: gt.addmm(x[0, 0, 0], x[0], x), ShapeError, r"mat2 has shape \(2, 3, 3\).*2 dimensions"),
        (lambda x: gt.addmm(x[0, :2], x[0], x[0]), ShapeError, r"input has shape \(2, 3\).*broadcast to \(3, 3\)"),
        (lambda x: gt.addmm(x, x[0], x[0]), ShapeError, r"input has shape \(2, 3, 3\)"),
        (lambda x: gt.baddbmm(x, x, x[:1]), ShapeError, "batch2 has 1.*expand"),
        (lambda x: gt.matmul(x, x[0, :2]), ShapeError, "^input of .*3 columns, other of .*2 rows"),
        (lambda x: gt.matmul(x[0, 0, 0], x), ShapeError, "input has shape ()"),
        (lambda x: gt.linear(x, x), ShapeError, "out_features, in_features"),
        (lambda x: gt.linear(x, x[0], x[0]), ShapeError, r"bias has shape \(3, 3\)"),
        (lambda x: gt.linear(x, x[0, :, :2]), ShapeError, r"^input has shape \(2, 3, 3\) and weight \(3, 2\); linear"),
        (lambda x: gt.linear(x, x[0].half()), DTypeError, "^input is float32 and weight is float16; .* gemmule.matmul"),
        (lambda x: gt.matmul(x, x.double()), DTypeError, "^input is float32 and other is float64"),
        (lambda x: gt.addmm(x[0].double(), x[0], x[0]), DTypeError, "mat1 is float32 and input is float64"),
        (lambda x: gt.linear(x, x[0], x[0, 0].half()), DTypeError, "bias is float16"),
        (lambda x: gt.matmul(x.int(), x.int()), DTypeError, "^input is int32.*gemmule.matmul"),
        (lambda x: gt.matmul(x, x, precision="tf16"), ArgumentError, "tf16"),
        (lambda x: gt.matmul(x.half(), x.half(), precision="tf32"), DTypeError, "tf32"),
        (lambda x: gt.Linear(3, 3, precision="tf16"), ArgumentError, "tf16"),
        (lambda x: gt.replace_linear(torch.nn.Linear(3, 3), precision="tf16"), ArgumentError, "tf16"),
        (lambda x: gt.replace_linear(3), ArgumentError, "model is of type int.*torch.nn.Module"),
        (lambda x: gt.replace_linear(torch.nn.Linear(3, 3), where="0"), ArgumentError, "where='0' cannot be called"),
        (lambda x: gt.matmul(x.numpy(), x), ArgumentError, "input is of type ndarray.*as_tensor.*gemmule.matmul"),
        (lambda x: gt.matmul(x, [[1.0]]), ArgumentError, "other is of type list"),
        (lambda x: gt.matmul(None, x), ArgumentError, "input is of type NoneType"),
        (lambda x: gt.linear(x, None), ArgumentError, "weight is of type NoneType"),
        (lambda x: gt.linear(x, x[0], 3.0), ArgumentError, "bias is of type float"),
        (lambda x: gt.addmm(0, x[0], x[0]), ArgumentError, "input is of type int"),
        (lambda x: gt.baddbmm(x, x, x.numpy()), ArgumentError, "batch2 is of type ndarray"),
        (lambda x: gt.addmm(x[0], x[0], x[0], alpha="2"), ArgumentError, "alpha is of type str, not a number"),
        (
            lambda x: gt.addmm(*[x[0] * 1j] * 3, alpha=1j),
            ArgumentError,
            "is complex; gm.gemm takes that.*scale an operand",
        ),
        (lambda x: gt.baddbmm(x, x, x, beta=None), ArgumentError, "beta is of type NoneType"),
        (lambda x: gt.addmm(x[0], x[0], x[0], beta=x[0, 0]), ArgumentError, "beta is of type Tensor"),
        (
            lambda x: gt.addmm(x[0], x[0], x[0], alpha=torch.tensor(2.0, requires_grad=True)),
            ArgumentError,
            r"^alpha requires grad, .* without a gradient: pass alpha\.detach\(\), or multiply an operand by it$",
        ),
        (lambda x: gt.matmul(x, torch.ones(3, 3, 3)), ShapeError, r"\(2,\) of input and \(3,\) of other do not"),
        (
            lambda x: gt.matmul(x, torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)),
            DTypeError,
            r"^other is qint8; pass other\.dequantize\(\)$",
        ),
        (lambda x: gt.matmul(x, x.to("meta")), ArgumentError, "^input is on cpu and other is on meta; move one"),
        (lambda x: gt.addmm(x[0].to("meta"), x[0], x[0]), ArgumentError, "^input is on meta and mat1 is on cpu"),
        *(
            (call, ArgumentError, rf"^{name} has layout .*; pass {name}\.to_dense\(\)$")
            for name, call in {
                "input": lambda x: gt.linear(x[0].to_sparse(), x[0]),
                "bias": lambda x: gt.linear(x[0], x[0], x[0, 0].to_sparse()),
                "other": lambda x: gt.matmul(x[0], x[0].to_sparse()),
                "mat1": lambda x: gt.addmm(x[0], x[0].to_sparse(), x[0]),
                "batch2": lambda x: gt.baddbmm(x, x, x.to_sparse()),
            }.items()
        ),
    ],
)
def test_refusals(call, error, says):
    with pytest.raises(error, match=says):
        call(torch.ones(2, 3, 3))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_are_refused(layout):
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout)
    w = torch.ones(3, 3)
    for call, name in (
        (lambda: gt.matmul(nested, w), "input"),
        (lambda: gt.linear(nested, w), "input"),
        (lambda: gt.baddbmm(w, nested, nested), "batch1"),
    ):
        with pytest.raises(ArgumentError, match=f"^{name} is a nested tensor.*{name}.unbind"):
            call()


def test_scalars_without_dimensions():
    given, a, b = doubles((3, 4), (3, 5), (5, 4), grad=False)
    for two in (torch.tensor(2), torch.tensor(2.0).bfloat16(), torch.tensor(2.0).double().numpy(), 2):
        torch.testing.assert_close(gt.addmm(given, a, b, alpha=two, beta=two), 2 * (a @ b) + 2 * given)


def test_negated_views():
    z = torch.randn(4, 4, dtype=torch.complex128)
    lazy, other = z.conj().imag, z.real
    assert lazy.is_neg()
    for grad in (False, True):
        a, b = lazy.requires_grad_(grad), other.clone().requires_grad_(grad)
        torch.testing.assert_close(gt.addmm(a, a, b), a + a @ b)


@pytest.mark.parametrize(
    ("ours", "theirs", "shapes"),
    [
        (gt.matmul, torch.mm, [(3, 5), (5, 4)]),
        (gt.matmul, torch.bmm, [(2, 3, 5), (2, 5, 4)]),
        (gt.matmul, torch.matmul, [(2, 3, 5), (5, 4)]),
        (gt.matmul, torch.matmul, [(5,), (5, 4)]),
        (gt.addmm, torch.addmm, [(4,), (3, 5), (5, 4)]),
        (gt.baddbmm, torch.baddbmm, [(3, 4), (2, 3, 5), (2, 5, 4)]),
        (gt.linear, torch.nn.functional.linear, [(2, 3, 5), (4, 5), (4,)]),
        (gt.linear, torch.nn.functional.linear, [(0, 5), (4, 5)]),
    ],
)  # fmt: skip
def test_operations_are_counted_as_those_of_torch(ours, theirs, shapes):
    from torch.utils.flop_counter import FlopCounterMode

    counts = []
    for function in (ours, theirs):
        operands = doubles(*shapes)
        with FlopCounterMode(display=False) as forward:
            result = function(*operands)
        with FlopCounterMode(display=False) as backward:
            result.sum().backward()
        counts.append((forward.get_total_flops(), backward.get_total_flops()))
    assert counts[0] == counts[1]
    assert counts[0][0] or 0 in shapes[0]


def test_whoever_listens_sees_the_operator(rng):
    """Modes, profilers and transforms; without them the dispatcher is passed by, and the result is the same."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Heard(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    names = []
    a, b = (torch.from_numpy(rng.standard_normal((5, 5))) for _ in range(2))
    plain = gt.matmul(a, b)
    with Heard():
        torch.testing.assert_close(gt.matmul(a, b), plain, rtol=0, atol=0)
    assert "gemmule.gemm.default" in names
    with torch.profiler.profile() as profiled:
        gt.matmul(a, b)
    assert "gemmule::gemm" in {event.name for event in profiled.events()}
    meta = gt.matmul(a.to("meta"), b.to("meta"))
    assert meta.is_meta
    assert meta.shape == plain.shape


def test_what_is_below_the_dispatcher_keeps_to_its_settings(rng):
    a, b = (torch.from_numpy(rng.standard_normal((5, 5))) for _ in range(2))
    a.requires_grad_()
    with torch.no_grad():
        assert not gt.matmul(a, b).requires_grad
    with torch.inference_mode():
        assert gt.matmul(a.detach(), b).is_inference()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        gt.matmul(a, b).sum().backward()
    assert len(kept) == 2
    torch.testing.assert_close(a.grad, torch.ones(5, 5, dtype=torch.float64) @ b.T)

    class Named(torch.Tensor):
        pass

    assert type(gt.matmul(a.detach().as_subclass(Named), b)) is Named
