"""Products in programs that Inductor generates: called as functions, into the program's memory."""

import pytest

torch = pytest.importorskip("torch")
import gemmule.torch  # noqa: E402

#: Of what Inductor imports.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """Programs of no other run are loaded."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()


def compiled(function, *given, **options):
    """Return the results of a compiled function, and its generated code."""
    from torch._inductor.utils import run_and_get_code

    results, codes = run_and_get_code(torch.compile(function, **options), *given)
    return results, "\n".join(codes)


def randn(*shape, requires_grad=False):
    return torch.randn(*shape, requires_grad=requires_grad)


@pytest.mark.parametrize("shape", [(7, 33), (3, 5, 33), (1, 33)])
def test_a_layer_is_a_call_into_the_programs_memory(shape):
    x, weight = randn(*shape), randn(17, 33)
    with torch.no_grad():
        result, code = compiled(lambda x, w: gemmule.torch.linear(x, w), x, weight)
    assert "extern_kernels.gemmule_gemm(" in code
    assert "torch.ops.gemmule" not in code
    assert result.shape == (*shape[:-1], 17)
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
    assert "torch.ops.gemmule.gemm" in code
    torch.testing.assert_close(first, torch.nn.functional.linear(x, weight, bias))
    torch.testing.assert_close(second, x @ batch)


def test_trained():
    x, weight = randn(6, 4, requires_grad=True), randn(3, 4, requires_grad=True)
    result, code = compiled(lambda x, w: gemmule.torch.linear(x, w), x, weight)
    assert "extern_kernels.gemmule_gemm(" in code
    result.sum(0).backward(torch.arange(3.0))
    expected = torch.arange(3.0).expand(6, 3)
    torch.testing.assert_close(x.grad, expected @ weight.detach())
    torch.testing.assert_close(weight.grad, expected.mT @ x.detach())


def test_other_numbers_of_rows():
    weight = randn(5, 8)
    layer = torch.compile(lambda x: gemmule.torch.linear(x, weight), dynamic=True)
    with torch.no_grad():
        for rows in (3, 9, 2, 31):
            x = randn(rows, 8)
            torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, weight))


def test_a_precision_goes_with_the_call():
    x, weight = randn(8, 16), randn(16, 8)
    with torch.no_grad():
        _, code = compiled(lambda x, w: gemmule.torch.matmul(x, w, precision="ieee"), x, weight)
    assert "precision='ieee'" in code
