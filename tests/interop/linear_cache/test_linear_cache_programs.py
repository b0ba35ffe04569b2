"""Products into memory of a compiled program: what is queued without a plan, and what is not."""

from __future__ import annotations

import pytest

from gemmule.core.errors import ShapeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")

from gemmule.dispatch.choices.choice_cache import clear_choices  # noqa: E402
from gemmule.torch import linear_cache  # noqa: E402
from support.fakes.linear_gpu import operands, seen  # noqa: E402

functional = torch.nn.functional


@pytest.mark.parametrize("shape", [(4, 16), (2, 3, 16)], ids=str)
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("layouts", [None, "those of the program"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_product_into_memory_of_a_program_is_queued_without_a_plan(gpu, shape, grad, layouts, with_bias):
    _, weight, bias = operands(*shape, bias=with_bias, grad=grad)
    inputs = (weight.mT, bias) if with_bias else (weight.mT,)
    for call in range(4):
        x, out = (torch.full((*shape[:-1], last), torch.nan, dtype=torch.float64) for last in (16, 8))
        with torch.no_grad():
            x.normal_()
            _, queued = seen(gpu, lambda x=x, out=out: linear_cache.product_into(x, *inputs, out=out, layouts=layouts))
            torch.testing.assert_close(out, functional.linear(x, weight, bias))
        assert queued == (call > 0)


def test_first_calls_of_a_program_are_within_a_mode_and_looked_at_later(gpu):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    first, second, out = torch.randn(3, 8, 8, dtype=torch.float64)
    with Mode():
        # As many as there are layers.
        for _ in range(2 * linear_cache.MOST_LOOKS):
            assert seen(gpu, lambda: linear_cache.product_into(first, second, out=out, layouts="8 x 8"))[1] == 0
    calls = [seen(gpu, lambda: linear_cache.product_into(first, second, out=out, layouts="8 x 8"))[1] for _ in range(3)]
    assert calls == [0, 1, 1]


@pytest.mark.parametrize("layouts", [None, "8 x 8"])
@pytest.mark.parametrize(
    ("context", "queued"),
    [
        (lambda: torch.device("cpu"), [0, 1, 1]),
        (torch.profiler.profile, [0, 1, 1]),
        (torch.autograd.forward_ad.dual_level, [0, 0, 0]),
    ],
    ids=["a default device", "a profiler", "tangents"],
)
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_only_modes_and_tangents_keep_a_program_from_the_cache(gpu, layouts, context, queued):
    first, second, out = torch.randn(3, 8, 8, dtype=torch.float64)
    into = linear_cache.product_into
    with context():
        assert [seen(gpu, lambda: into(first, second, out=out, layouts=layouts))[1] for _ in range(3)] == queued
    torch.testing.assert_close(out, first @ second)
    # Without a look in vain.
    assert len(linear_cache._looks) == any(queued)


@pytest.mark.parametrize("layouts", [None, "8 x 8"])
def test_the_guard_is_asked_only_where_no_layouts_are_stated(gpu, monkeypatch, layouts):
    checks, guards = [], linear_cache._guards

    def counted(*given):
        check = guards(*given)
        return lambda *others: checks.append(others) or check(*others)

    monkeypatch.setattr(linear_cache, "_guards", counted)
    first, second, out = torch.randn(3, 8, 8, dtype=torch.float64)
    into = linear_cache.product_into
    assert [seen(gpu, lambda: into(first, second, out=out, layouts=layouts))[1] for _ in range(4)] == [0, 1, 1, 1]
    assert len(checks) == (0 if layouts else 3)


def test_products_into_memory_of_a_program_are_found_by_their_type(gpu):
    for dtype in (torch.float64, torch.float32):
        first, second, out = torch.randn(3, 8, 8, dtype=torch.float64).to(dtype)
        for _ in range(2):
            linear_cache.product_into(first, second, out=out)
            torch.testing.assert_close(out, first @ second)
    assert [len(known) for known in linear_cache._intos.values()] == [1, 1]


@pytest.mark.parametrize("place", range(4))
def test_memory_of_a_program_that_was_freed_is_not_read(gpu, place):
    given = [torch.randn(8, 8, dtype=torch.float64) for _ in range(4)]
    given[2] = given[2][0].clone()

    def into():
        linear_cache.product_into(*given[:3], out=given[3], layouts="8 x 8 and 8")

    assert [seen(gpu, into)[1] for _ in range(2)] == [0, 1]
    given[place].untyped_storage().resize_(0)
    before = gpu.queued
    with pytest.raises((RuntimeError, ShapeError, ValueError)):
        into()
    assert gpu.queued == before


@pytest.mark.parametrize("needed", range(3))
def test_factors_of_a_program_may_ask_for_gradients(gpu, needed):
    """Also where gradients are enabled: the program has a backward of its own."""
    given = [torch.randn(8, 8, dtype=torch.float64), torch.randn(8, 8, dtype=torch.float64), torch.randn(8).double()]
    given[needed].requires_grad_()
    for call in range(3):
        out = torch.full((8, 8), torch.nan, dtype=torch.float64)
        into = seen(gpu, lambda out=out: linear_cache.product_into(*given, out=out, layouts="8 x 8 and 8"))
        assert into == (None, call > 0)
        assert not out.requires_grad
        torch.testing.assert_close(out, (given[0] @ given[1] + given[2]).detach())


def test_addresses_that_need_a_plan_have_one_in_a_known_layout_too(gpu):
    first, second = torch.randn(2, 8, 8, dtype=torch.float64)
    unaligned = torch.randn(65, dtype=torch.float64)[1:].view(8, 8)
    bias, third = torch.randn(8, dtype=torch.float64), unaligned[0]
    for *inputs, queued in (
        *((first, second, 0), (first, second, 1), (unaligned, second, 0), (first, first, 0)),
        *((first, second, bias, 0), (first, second, bias, 1), (first, second, third, 0)),
    ):
        out = torch.full((8, 8), torch.nan, dtype=torch.float64)
        layouts = "8 x 8" if len(inputs) == 2 else "8 x 8 and 8"
        into = seen(gpu, lambda i=inputs, o=out, w=layouts: linear_cache.product_into(*i, out=o, layouts=w))
        assert into == (None, queued)
        torch.testing.assert_close(out, inputs[0] @ inputs[1] + (inputs[2] if len(inputs) > 2 else 0))
    clear_choices()
    assert not linear_cache._intos


@pytest.mark.parametrize("layouts", [None, "8 x 8"])
def test_a_syrk_plan_is_not_cached_for_other_factors_of_a_program(gpu, layouts):
    x, y = torch.randn(2, 8, 8, dtype=torch.float64)
    for b, queued in ((x, 0), (y, 0), (y, 1), (x, 0)):
        out = torch.full((8, 8), torch.nan, dtype=torch.float64)
        into = seen(gpu, lambda b=b, out=out: linear_cache.product_into(x, b.mT, out=out, layouts=layouts))
        assert into == (None, queued)
        torch.testing.assert_close(out, x @ b.mT)


def test_a_product_into_memory_in_another_layout_is_planned(gpu):
    first, second = torch.randn(2, 8, 8, dtype=torch.float64)
    layouts = (first, second), (first.mT, second), (first, second.mT), (first, first), (first, first.mT)
    for a, b in 2 * layouts:
        out = torch.full((8, 8), torch.nan, dtype=torch.float64)
        linear_cache.product_into(a, b, out=out)
        torch.testing.assert_close(out, a @ b)
    # Two factors at one address are one of a kind.
    assert gpu.queued == 3
