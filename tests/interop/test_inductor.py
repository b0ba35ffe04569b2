"""Products in programs that Inductor generates: called as functions, into the program's memory."""

import contextlib
import types

import pytest

torch = pytest.importorskip("torch")
import gemmule.torch  # noqa: E402
from gemmule.torch import inductor, linear_cache, linear_calls  # noqa: E402

#: Of what Inductor imports.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def said(tmp_path, monkeypatch):
    """Return what calls say of their layouts; programs of no other run are loaded."""
    from torch._inductor.select_algorithm import extern_kernels

    inductor.add_lowering(gemmule.torch.product.gemm)
    found = []

    def checked(*inputs, out, layouts=None, precision=None):
        found.append(layouts)
        linear_cache.product_into(*inputs, out=out, layouts=layouts, precision=precision)

    monkeypatch.setattr(extern_kernels, "gemmule_gemm", checked)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    return found


def compiled(function, *given, **options):
    """Return the results of a compiled function, and its generated code."""
    from torch._inductor.utils import run_and_get_code

    results, codes = run_and_get_code(torch.compile(function, **options), *given)
    return results, "\n".join(codes)


def randn(*shape, requires_grad=False):
    return torch.randn(*shape, requires_grad=requires_grad)


#: Layouts of a layer of 17 by 33, by the shape of its input.
LAYERS = {
    (7, 33): "None; cpu torch.float32 [7, 33] [33, 1]; cpu torch.float32 [33, 17] [1, 33]; "
    "cpu torch.float32 [7, 17] [17, 1]",
    (3, 5, 33): "None; cpu torch.float32 [3, 5, 33] [165, 33, 1]; cpu torch.float32 [33, 17] [1, 33]; "
    "cpu torch.float32 [3, 5, 17] [85, 17, 1]",
    (1, 33): "None; cpu torch.float32 [1, 33] [33, 1]; cpu torch.float32 [33, 17] [1, 33]; "
    "cpu torch.float32 [1, 17] [17, 1]",
}


@pytest.mark.parametrize("shape", LAYERS)
def test_a_layer_is_a_call_into_the_programs_memory(shape, said):
    x, weight = randn(*shape), randn(17, 33)
    with torch.no_grad():
        result, code = compiled(lambda x, w: gemmule.torch.linear(x, w), x, weight)
    assert "extern_kernels.gemmule_gemm(" in code
    assert "torch.ops.gemmule" not in code
    assert result.shape == (*shape[:-1], 17)
    assert said == [LAYERS[shape]]
    torch.testing.assert_close(result, torch.nn.functional.linear(x, weight))


def test_a_chain_with_an_empty_factor_and_no_inner_dimension():
    x, weight, empty = randn(4, 6), randn(6, 5), randn(5, 0)
    with torch.no_grad():
        (first, second, third), code = compiled(
            lambda x, w, e: (
                gemmule.torch.matmul(x, w),
                gemmule.torch.matmul(gemmule.torch.matmul(x, w), e),
                gemmule.torch.matmul(e, e.mT),
            ),
            *(x, weight, empty),
        )
    assert "extern_kernels.gemmule_gemm(" in code
    torch.testing.assert_close(first, x @ weight)
    assert second.shape == (4, 0)
    assert torch.equal(third, torch.zeros(5, 5))


def test_a_bias_and_a_batch_are_dispatched():
    x, weight, bias, batch = randn(4, 6), randn(5, 6), randn(5), randn(3, 6, 2)
    with torch.no_grad():
        (first, second), code = compiled(
            lambda x, w, b, batch: (gemmule.torch.linear(x, w, b), gemmule.torch.matmul(x, batch)),
            *(x, weight, bias, batch),
        )
    assert code.count("torch.ops.gemmule.gemm.default(") == 2
    assert "extern_kernels.gemmule_gemm(" not in code
    torch.testing.assert_close(first, torch.nn.functional.linear(x, weight, bias))
    torch.testing.assert_close(second, x @ batch)


def test_a_bias_that_the_kernel_reads_goes_with_the_call(said, monkeypatch):
    monkeypatch.setattr(inductor, "bias_role", lambda *_: "bias")
    x, weight, bias = randn(4, 1, 6), randn(5, 6), randn(5)

    def layers(x, weight, bias):
        # Of another scale, shape or rank it is none.
        return (
            gemmule.torch.linear(x, weight, bias),
            gemmule.torch.linear(x, weight, bias * 2 + 1),
            gemmule.torch.addmm(bias, x[:, 0], weight.mT, beta=2),
            gemmule.torch.addmm(bias, x[:, 0], weight.mT, alpha=2),
            gemmule.torch.addmm(bias[:4, None], x[:, 0], weight.mT),
        )

    with torch.no_grad():
        results, code = compiled(layers, x, weight, bias)
        for got, expected in zip(results, layers(x, weight, bias), strict=True):
            torch.testing.assert_close(got, expected)
    assert len(said) == code.count("extern_kernels.gemmule_gemm(") == 2
    # One bias is an input, the other one is made by the program: they lie alike.
    assert {*said} == {
        "None; cpu torch.float32 [4, 1, 6] [6, 6, 1]; cpu torch.float32 [6, 5] [1, 6]; cpu torch.float32 [5] [1]; "
        "cpu torch.float32 [4, 1, 5] [5, 5, 1]"
    }
    assert code.count("torch.ops.gemmule.gemm.default(") == 3


def test_trained():
    x, weight = randn(6, 4, requires_grad=True), randn(3, 4, requires_grad=True)
    result, code = compiled(lambda x, w: gemmule.torch.linear(x, w), x, weight)
    assert "extern_kernels.gemmule_gemm(" in code
    result.sum(0).backward(torch.arange(3.0))
    expected = torch.arange(3.0).expand(6, 3)
    torch.testing.assert_close(x.grad, expected @ weight.detach())
    torch.testing.assert_close(weight.grad, expected.mT @ x.detach())


def test_other_numbers_of_rows(said):
    weight = randn(5, 8)
    layer = torch.compile(lambda x: gemmule.torch.linear(x, weight), dynamic=True)
    with torch.no_grad():
        for rows in (3, 9, 2, 31):
            x = randn(rows, 8)
            torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, weight))
    # What differs from call to call is not known when the program is made.
    assert said == [None] * 4


def test_factors_that_the_program_makes(said):
    """Their layouts are decided while the program is made."""
    x, weight, other = randn(3, 1, 16), randn(16, 16), randn(5, 16)

    def layers(x, weight, other):
        first = gemmule.torch.linear(x * 2, weight)
        second = gemmule.torch.linear((first.transpose(0, 1) + 1).transpose(0, 1), weight.mT * 3)
        return gemmule.torch.linear(second[:, -1].relu(), torch.cat((other, other)))

    with torch.no_grad():
        result, _ = compiled(layers, x, weight, other)
        torch.testing.assert_close(result, layers(x, weight, other), rtol=1e-4, atol=1e-3)
    assert len(said) == 3
    assert None not in said


@pytest.mark.parametrize("context", [contextlib.nullcontext, lambda: torch.device("cpu")], ids=["plain", "device"])
def test_calls_after_the_first_are_queued_without_a_plan(said, monkeypatch, context):
    queued = []

    def cached(a, b, **_):
        # As the call cache, which caches nothing within a mode, such as the one of a program's first call.
        return None if torch._C._len_torch_dispatch_stack() else lambda addresses, stream: queued.append(addresses)

    monkeypatch.setattr(linear_cache, "cached_gemm", cached)
    monkeypatch.setattr(linear_calls, "raw_stream", lambda device: 7)
    monkeypatch.setattr(linear_calls, "_is_capturing", lambda: False)
    monkeypatch.setattr(linear_calls, "LOW", 63)
    linear_cache.forget()
    # More layers of a kind than times that one is looked at.
    weights = [randn(16, 16) for _ in range(linear_cache.MOST_LOOKS + 2)]

    def layers(x):
        for weight in weights:
            x = gemmule.torch.linear(x, weight)
        return x

    program, counts = torch.compile(layers), []
    with torch.no_grad(), context():
        for _ in range(3):
            before = len(queued)
            program(randn(8, 16))
            counts.append(len(queued) - before)
    linear_cache.forget()
    assert len(said) == 3 * len(weights)
    assert counts == [0, len(weights) - 1, len(weights)]


def test_a_precision_goes_with_the_call(said):
    x, weight = randn(8, 16), randn(16, 8)
    with torch.no_grad():
        _, code = compiled(lambda x, w: gemmule.torch.matmul(x, w, precision="ieee"), x, weight)
    assert "precision='ieee'" in code
    assert said[0].startswith("'ieee'; cpu torch.float32 [8, 16] [16, 1]; ")
    layout = types.SimpleNamespace(device="cpu", dtype=torch.float32, size=[2], stride=[1])
    assert len({inductor._layouts([layout], precision) for precision in (None, "None", "tf32")}) == 3


def test_other_strides_devices_and_types_are_other_layouts(said):
    x, weight = randn(8, 16), randn(16, 16)
    with torch.no_grad():
        results, _ = compiled(lambda x, w: (gemmule.torch.matmul(x, w), gemmule.torch.matmul(x, w.mT)), x, weight)
    torch.testing.assert_close(results, (x @ weight, x @ weight.mT))
    first, last = "None; cpu torch.float32 [8, 16] [16, 1]; cpu torch.float32 ", "; cpu torch.float32 [8, 16] [16, 1]"
    assert said == [f"{first}[16, 16] {strides}{last}" for strides in ("[16, 1]", "[1, 16]")]

    def stated(place, **facts):
        layouts = [{"device": "cuda:0", "dtype": torch.float16, "size": [4, 4], "stride": [4, 1]} for _ in range(4)]
        layouts[place] |= facts
        return inductor._layouts([types.SimpleNamespace(**layout) for layout in layouts], None)

    plain = stated(0)
    for place in range(4):
        others = {"device": "cpu", "dtype": torch.bfloat16, "size": [4, 2], "stride": [1, 4]}
        assert all(stated(place, **{name: value}) != plain for name, value in others.items())


def test_programs_of_another_version_are_not_loaded_from_inductors_cache(monkeypatch):
    from torch._dynamo.utils import counters
    from torch._inductor import config

    if not hasattr(config, "unsafe_marked_cacheable_functions"):
        pytest.skip("this Inductor has no table of versions")
    monkeypatch.setattr(config, "unsafe_marked_cacheable_functions", {"another": "1"})
    x, weight = randn(4, 6), randn(6, 5)

    def hits():
        """Return how many programs of a process that begins now come from the cache."""
        torch._dynamo.reset()
        before = counters["inductor"]["fxgraph_cache_hit"]
        with torch.no_grad():
            program = torch.compile(lambda x, w: gemmule.torch.matmul(x, w) + 1)
            torch.testing.assert_close(program(x, weight), x @ weight + 1)
        return counters["inductor"]["fxgraph_cache_hit"] - before

    assert [hits(), hits()] == [0, 1]
    with monkeypatch.context() as patched:
        patched.setattr(gemmule, "__version__", "another")
        assert [hits(), hits()] == [0, 1]
    assert hits() == 1
    assert config.unsafe_marked_cacheable_functions["another"] == "1"
