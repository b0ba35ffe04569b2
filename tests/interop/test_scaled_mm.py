"""gemmule.torch.scaled_mm and quantize_linear on the CPU: torch's meaning, and what PyTorch's tracers make of them."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.errors import ArgumentError, DTypeError, ShapeError
from support.scaled_products import FORMS, reference, scales_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import gemmule.torch as gt  # noqa: E402

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def operands(shape, kinds=(E4M3, E5M2)):
    m, n, k = shape
    return torch.randn(m, k).to(kinds[0]), torch.randn(n, k).to(kinds[1]).T


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form, rng):
    shape = (33, 48, 272)
    a, b = operands(shape)
    scales = scales_of(form, shape, rng)
    got = gt.scaled_mm(a, b, *map(torch.from_numpy, scales), out_dtype=torch.float32)
    exact, size = reference(a.float().numpy(), b.float().numpy(), *scales)
    assert (np.abs(got.numpy() - exact) <= 300 * 2.0**-24 * size).all()


def test_meaning_of_torch():
    """Of one scale PyTorch computes on the CPU too: the default type, a bias, and the scale of the result."""
    a, b = operands((32, 48, 64), (E4M3, E4M3))
    one, two = torch.tensor(0.5), torch.tensor(0.25)
    got, wanted = gt.scaled_mm(a, b, one, two), torch._scaled_mm(a, b, one, two)
    assert got.dtype == wanted.dtype == E4M3
    apart = got.view(torch.uint8) != wanted.view(torch.uint8)
    assert apart.float().mean() < 0.01
    bias = torch.randn(48)
    got = gt.scaled_mm(a, b, one, two, bias, out_dtype=torch.float32)
    torch.testing.assert_close(got, a.float() @ b.float() * 0.125 + bias)
    scaled = gt.scaled_mm(a, b, one, two, bias, torch.tensor([2.0]), torch.float32)
    torch.testing.assert_close(scaled, 2 * got)


def test_scales_by_exponents(rng):
    a, b = operands((16, 32, 256))
    scales = [torch.from_numpy(rng.integers(120, 134, sides).astype(np.uint8)).view(torch.float8_e8m0fnu)
              for sides in ((16, 2), (2, 1))]  # fmt: skip
    got = gt.scaled_mm(a, b, *scales, out_dtype=torch.float32)
    wanted = gt.scaled_mm(a, b, *(x.float() for x in scales), out_dtype=torch.float32)
    assert torch.equal(got, wanted)


def test_groups_with_scales():
    """By the shapes of torch._scaled_grouped_mm, of which the CPU has none; and as an operator."""
    a, b = torch.randn(40, 48).to(E4M3), torch.randn(3, 32, 48).to(E4M3).mT
    offs, scale_a, scale_b = torch.tensor([7, 7, 30], dtype=torch.int32), torch.rand(40), torch.rand(3, 32)
    got = gt.scaled_grouped_mm(a, b, scale_a, scale_b, offs, out_dtype=torch.float32)
    wanted = torch.zeros(40, 32)
    for group, part in ((0, slice(7)), (2, slice(7, 30))):
        wanted[part] = (a[part].float() * scale_a[part, None]) @ (b[group].float() * scale_b[group])
    torch.testing.assert_close(got, wanted)
    assert gt.scaled_grouped_mm(a, b, scale_a, scale_b, offs).dtype == torch.bfloat16
    given = a, b, scale_a[:, None], scale_b[:, None], offs, None, torch.float32
    tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.gemmule.scaled_grouped_mm.default, given, test_utils=tests)
    compiled = torch.compile(gt.scaled_grouped_mm, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(a, b, scale_a, scale_b, offs, out_dtype=torch.float32), wanted)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(ShapeError, match=r"mat_a has shape \(40, 32\)"):
        gt.scaled_grouped_mm(a[:, :32], b, scale_a, scale_b, offs)


def test_operations_are_counted():
    a, b = operands((33, 48, 272))
    one = torch.ones(())
    with FlopCounterMode(display=False) as counter:
        gt.scaled_mm(a, b, one, one, out_dtype=torch.float32)
    assert counter.get_total_flops() == 2 * 33 * 48 * 272


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"scale_a": torch.ones(33)}, ShapeError, r"scale_a has shape \(33,\); give one element, \(33, 1\)"),
        ({"scale_b": torch.ones(2, 48)}, ShapeError, r"\(1, 48\) for each column of b, \(3, 48\) .* or \(3, 1\)"),
        ({"scale_a": torch.ones(1, dtype=torch.float64)}, DTypeError, "scale_a is float64; scales are float32"),
        ({"mat_a": torch.ones(33, 272)}, DTypeError, "^mat_a is float32; scaled products take float8_e4m3fn"),
        ({"bias": torch.ones(33)}, ShapeError, "bias has shape"),
        ({"scale_result": torch.ones(2)}, ShapeError, "scale_result is float32 of shape"),
        ({"out_dtype": torch.int8}, DTypeError, "cannot be written as int8"),
        ({"out_dtype": "float33"}, DTypeError, "^out_dtype: .*got 'float33'"),
        ({"out_dtype": 3}, DTypeError, "^out_dtype=3 is not a dtype"),
        ({"out_dtype": "int4"}, DTypeError, "^out_dtype"),
        ({"scale_a": 1.0}, ArgumentError, "scale_a is of type float"),
        ({"scale_b": None}, ArgumentError, "scale_b is of type NoneType"),
    ],
)
def test_errors(change, error, text):
    a, b = operands((33, 48, 272))
    given = {"mat_a": a, "mat_b": b, "scale_a": torch.ones(1), "scale_b": torch.ones(1)} | change
    with pytest.raises(error, match=text):
        gt.scaled_mm(**given)


@pytest.mark.parametrize("name", ["float32", "bfloat16", np.float16])
def test_types_by_name(name):
    a, b = operands((33, 48, 272))
    one, ends = torch.ones(1), torch.tensor([33], dtype=torch.int32)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(name, torch.float16)
    for call in (
        lambda x: gt.scaled_mm(a, b, one, one, out_dtype=x),
        lambda x: gt.scaled_grouped_mm(a, b[None], one, one, ends, out_dtype=x),
    ):
        assert call(name).dtype == dtype
        assert torch.equal(call(name), call(dtype))
    if isinstance(name, str):
        compiled = torch.compile(gt.scaled_mm, fullgraph=True, backend="aot_eager")
        assert compiled(a, b, one, one, out_dtype=name).dtype == dtype


def test_operators():
    a, b = operands((16, 32, 256))
    scales = torch.rand(16, 2), torch.rand(2, 32)
    # What is left out compares copies of 8-bit floats by operators that PyTorch does not have for them.
    options = {"test_utils": ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")}
    given = (a, b, *scales, torch.ones(32), None, torch.bfloat16)
    torch.library.opcheck(torch.ops.gemmule.scaled_mm.default, given, **options)
    for by in ("tensor", "row", "block"):
        for shape in ((6, 272), (3, 2, 272)):
            torch.library.opcheck(torch.ops.gemmule.quantize.default, (torch.randn(shape), by, E4M3), **options)


@pytest.mark.parametrize("by", ["row", "tensor"])
@pytest.mark.parametrize("shape", [(32, 64), (3, 32, 64)])
def test_scales_of_one_column_are_row_major(by, shape):
    """torch._scaled_mm refuses scales of rows whose columns do not lie one after the other."""
    _, scales = gm.quantize(torch.randn(shape), by=by)
    assert scales.stride()[-2:] == (1, 1)
    assert torch.ops.gemmule.quantize(torch.randn(shape), by, E4M3)[1].stride() == scales.stride()


@pytest.mark.parametrize("kind", ["fp8-row", "fp8-block"])
def test_quantized_layers(kind):
    model = torch.nn.Sequential(
        torch.nn.Linear(144, 272), torch.nn.GELU(), torch.nn.Linear(272, 32, bias=False), torch.nn.Linear(32, 3)
    )
    x = torch.randn(2, 5, 144)
    with torch.no_grad():
        wanted = model(x)
        assert gt.quantize_linear(model, kind) == ("0", "2")
        got = model(x)
        assert got.shape == (2, 5, 3)
        assert got.dtype == torch.float32
        # Weights and inputs have 4 bits of significand.
        assert (got - wanted).norm() < 0.1 * wanted.norm()
        assert torch.equal(torch.compile(model, backend="aot_eager", fullgraph=True)(x), got)
        assert model(x[:0]).shape == (0, 5, 3)
    assert model[0].weight.dtype == E4M3
    assert set(model.state_dict()) >= {"0.weight", "0.weight_scale", "0.bias", "2.weight", "2.weight_scale"}
    with pytest.raises(ArgumentError, match="no_grad"):
        model(x.requires_grad_())


@pytest.mark.parametrize("kind", ["fp8-row", "fp8-block"])
def test_quantized_weights_keep_their_types(kind):
    """Whatever a model is converted to, and through a state_dict; the bias is converted."""
    model = torch.nn.Sequential(torch.nn.Linear(144, 272), torch.nn.Linear(272, 16))
    gt.quantize_linear(model, kind)
    layer, before = model[0], {name: x.clone() for name, x in model.state_dict().items()}
    for convert in (model.half, lambda: model.to(torch.bfloat16), model.double, lambda: model.to("cpu", torch.half)):
        convert()
        assert (layer.weight.dtype, layer.weight_scale.dtype) == (E4M3, torch.float32)
        assert layer.bias.dtype not in (E4M3, torch.float32)
        assert torch.equal(layer.weight.float(), before["0.weight"].float())
        assert torch.equal(layer.weight_scale, before["0.weight_scale"])
    assert {x.device.type for x in model.to("meta").state_dict().values()} == {"meta"}
    other = torch.nn.Sequential(torch.nn.Linear(144, 272), torch.nn.Linear(272, 16))
    gt.quantize_linear(other, kind)
    other.half().load_state_dict(before)
    for name in ("0.weight", "0.weight_scale"):
        assert torch.equal(other.state_dict()[name].float(), before[name].float())
        assert other.state_dict()[name].dtype == before[name].dtype
    x = torch.randn(3, 144)
    with torch.no_grad():
        assert other(x.half()).dtype == torch.float16


@pytest.mark.parametrize("kind", ["fp8-row", "fp8-block"])
@pytest.mark.parametrize("bias", [False, True])
def test_quantized_layers_follow_autocast(kind, bias):
    layer, x = torch.nn.Linear(144, 32, bias=bias), torch.randn(3, 144)
    gt.quantize_linear(layer, kind)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            got = layer(x)
        wanted = layer(x.bfloat16().float())
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), wanted, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("shape", [(2, 128), (2, 512), (0, 7), (256, 2), ()])
def test_quantized_layers_take_their_features(shape):
    layer = torch.nn.Linear(256, 32)
    gt.quantize_linear(layer)
    with torch.no_grad(), pytest.raises(ShapeError) as ours:
        layer(torch.ones(shape))
    with pytest.raises(ShapeError) as its:
        gt.Linear(256, 32)(torch.ones(shape))
    assert str(ours.value) == str(its.value)
    with pytest.raises(ArgumentError, match="input is of type NoneType"):
        layer(None)


def test_quantized_errors():
    with pytest.raises(ArgumentError, match="kind='fp8' is not known"):
        gt.quantize_linear(torch.nn.Linear(16, 16), "fp8")
    with pytest.raises(ArgumentError, match=r"kind=\['fp8-row'\] is not known"):
        gt.quantize_linear(torch.nn.Linear(16, 16), ["fp8-row"])
    with pytest.raises(ArgumentError, match=r"not a torch\.nn\.Module"):
        gt.quantize_linear(gm)


def without_gradient():
    """Calls of the operators without a gradient, each by a tensor that requires one, and that tensor."""
    a, b = operands((32, 48, 64), (E4M3, E4M3))
    one, bias = torch.tensor(0.5), torch.randn(48, dtype=torch.bfloat16)
    scales, columns = torch.rand(32), torch.rand(2, 48)
    weights, ends = torch.stack([b, b]), torch.tensor([10, 32], dtype=torch.int32)
    rows = torch.randn(32, 64)
    return {
        "scaled_mm": (lambda x: gt.scaled_mm(a, b, one, one, x, out_dtype=torch.bfloat16), bias),
        "scaled_grouped_mm": (lambda x: gt.scaled_grouped_mm(a, weights, x, columns, ends), scales),
        "quantize": (lambda x: torch.ops.gemmule.quantize(x, "row", E4M3)[1], rows),
        "cast": (lambda x: gt.scaled_mm(x.to(E4M3), b, one, one, out_dtype=torch.float32), rows),
    }


@pytest.mark.parametrize("name", ["scaled_mm", "scaled_grouped_mm", "quantize", "cast"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_backward_is_an_error_as_of_torch(name, compiled):
    call, x = without_gradient()[name]
    wanted = call(x)
    assert not wanted.requires_grad
    run = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
    # What runs forward only is not disturbed by a parameter.
    got = run(x.requires_grad_())
    assert torch.equal(got.detach(), wanted)
    operator = "scaled_mm" if name == "cast" else name
    with pytest.raises(RuntimeError, match=f"derivative for gemmule::{operator} is not implemented; detach its inputs"):
        got.float().sum().backward()
    assert x.grad is None
    with torch.no_grad():
        assert not run(x).requires_grad


def _loaded_layer(block_size=(128, 128), activation_scale=None):
    """Return a layer as transformers has them of checkpoints with 8-bit weights, and one of the same weights before."""
    kind = type("FP8Linear", (torch.nn.Linear,), {"__module__": "transformers.integrations.finegrained_fp8"})
    layer, before = kind(272, 144), torch.nn.Linear(272, 144)
    layer.block_size, layer.activation_scale = block_size, activation_scale
    values, scales = gt.quantized.quantized_blocks(before.weight.detach())
    layer.weight, layer.weight_scale_inv = (torch.nn.Parameter(x, requires_grad=False) for x in (values, scales))
    layer.bias = before.bias
    return layer, before


@torch.no_grad()
def test_layers_with_8_bit_weights_keep_them():
    layer, before = _loaded_layer()
    model, x = torch.nn.Sequential(layer), torch.randn(5, 272)
    with pytest.warns(UserWarning, match=r"layer '0' is a FP8Linear .*; give kind='fp8-block'$"):
        assert gt.quantize_linear(model, "fp8-row") == ()
    assert gt.quantize_linear(model, "fp8-block") == ("0",)
    gt.quantize_linear(before, "fp8-block")
    assert torch.equal(model(x), before(x))
    assert list(model.state_dict()) == ["0.bias", "0.weight", "0.weight_scale"]
    exponents, _ = _loaded_layer()
    exponents.weight_scale_inv = torch.nn.Parameter(torch.ones(2, 3).to(torch.float8_e8m0fnu), requires_grad=False)
    # As in former versions of transformers.
    del exponents.activation_scale
    gt.quantize_linear(exponents, "fp8-block")
    assert exponents.weight_scale.dtype == torch.float32


@pytest.mark.parametrize(
    "other", [{"block_size": None}, {"block_size": (64, 128)}, {"activation_scale": torch.ones(1)}]
)
def test_other_layers_with_8_bit_weights_stay(other):
    layer, _ = _loaded_layer(**other)
    with pytest.warns(UserWarning, match="layer '' is a FP8Linear without scales of 128 x 128 weights, or with scales"):
        assert gt.quantize_linear(layer, "fp8-block") == ()


@pytest.mark.parametrize(
    ("model", "where", "why"),
    [
        (torch.nn.GELU(), None, "the model has no torch.nn.Linear"),
        (torch.nn.Linear(16, 24), None, "layer '' has 16 x 24 features; both must be multiples of 16"),
        (torch.nn.Linear(16, 16).double(), None, "layer '' is of torch.float64; its type must be torch.float32, "
         "torch.float16 or torch.bfloat16"),
        (torch.nn.LazyLinear(16), None, "layer '' is a LazyLinear, a subclass of torch.nn.Linear, .*"),
        (torch.nn.Sequential(torch.nn.Linear(3, 16), *(torch.nn.Linear(4, 16) for _ in range(4))), None,
         "layer '0' has 3 x 16 .*; layer '1' .*; layer '2' has 4 x 16 features; .* of 16; and 2 more"),
        (torch.nn.Linear(16, 16), lambda name, module: False, r"where=\.\.\. is false for every layer that could be"),
    ],
)  # fmt: skip
def test_quantize_linear_says_why_nothing_was_quantised(model, where, why):
    with pytest.warns(UserWarning, match=f"^no layer was quantised: {why}$") as warned:
        assert gt.quantize_linear(model, where=where) == ()
    assert len(warned) == 1
    assert warned[0].filename == __file__


def test_replaced_layers_are_quantised_once():
    model = torch.nn.Sequential(gt.Linear(16, 32, precision="tf32"))
    assert gt.quantize_linear(model) == ("0",)
    assert not hasattr(model[0], "precision")
    with pytest.warns(UserWarning, match="all linear layers are QuantizedLinear already"):
        assert gt.quantize_linear(model) == ()


class _Seen(torch.utils._python_dispatch.TorchDispatchMode):
    """Names of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def test_only_what_sees_operators_gets_them(monkeypatch):
    """Eager calls compute past PyTorch's dispatcher, with the same results."""
    a, b = operands((16, 32, 64), (E4M3, E4M3))
    one, layer, x = torch.tensor(0.5), torch.nn.Linear(64, 32), torch.randn(2, 5, 64)
    gt.quantize_linear(layer)
    groups = a, b[None], one, one, torch.tensor([16], dtype=torch.int32)
    calls = (lambda: gt.scaled_mm(a, b, one, one, out_dtype="float32"), lambda: gt.scaled_grouped_mm(*groups),
             lambda: layer(x))  # fmt: skip
    for call, names in zip(calls, (["scaled_mm"], ["scaled_grouped_mm"], ["quantize", "scaled_mm"]), strict=True):
        with _Seen() as seen:
            wanted = call()
        assert [name for name in seen.names if name.startswith("gemmule")] == [f"gemmule::{name}" for name in names]
        with monkeypatch.context() as without:
            for module in (gt.scaled, gt.quantized):
                for name in ("scaled_operator", "grouped_operator", "quantize_operator"):
                    without.setattr(module, name, None, raising=False)
            assert torch.equal(call(), wanted)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_traces_of_arrays_are_refused(mode):
    """A trace does not hear of functions of arrays; of symbols for extents neither."""
    from torch.fx.experimental.proxy_tensor import make_fx

    a, b = operands((16, 32, 64))
    one, ends = torch.ones(1), torch.tensor([16], dtype=torch.int32)
    x = torch.randn(16, 64)
    for call, arrays in (
        (lambda *given: gm.scaled_gemm(*given), (a, b, one, one)),
        (lambda *given: gm.grouped_gemm(*given), (x, torch.randn(1, 64, 32), ends)),
        (lambda x: gm.quantize(x)[0], (x,)),
    ):
        with pytest.raises(ArgumentError, match=r"use gemmule\.torch"):
            make_fx(call, tracing_mode=mode)(*arrays)
