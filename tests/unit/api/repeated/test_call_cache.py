"""One call cache: calls of other arrays of a known kind, and what a cold call hands to it."""

from __future__ import annotations

import types

import pytest

import gemmule as gm
from gemmule.api.calls.call_cache import CALLS
from gemmule.api.planning import choice
from gemmule.api.planning.plan import Execution
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.lab.products import gemm_problem
from gemmule.runtime import execute, repeated
from support.fakes import planners
from support.fakes.launches import launched
from support.fakes.plans import plans
from support.fakes.tensors import OUT, A, B, FakeTensor, fake, guarded, retained, state

__all__ = ["fake", "guarded", "launched", "plans", "retained", "state"]


@pytest.fixture
def described(fake, guarded):
    """Return the calls whose arrays were described."""
    found, describe = [], fake.describe

    def describing(*given):
        found.append(given)
        return describe(*given)

    fake.describe = describing
    return found


KINDS = {
    "matmul": lambda a, out: gm.matmul(a, B, out=out),
    "alpha": lambda a, out: gm.gemm(a, B, alpha=2.0, out=out),
    "c": lambda a, out: gm.gemm(a, B, FakeTensor(0x6000), beta=1.0, out=out),
    "a bias and a name": lambda a, out: gm.gemm(a, B, bias=FakeTensor(0x6000, (4,)), epilogue="relu", out=out),
}


@pytest.mark.parametrize("out", [OUT, None], ids=["out", "no out"])
@pytest.mark.parametrize("name", KINDS)
def test_new_arrays_of_a_known_kind_are_not_described(state, described, name, out):
    for _ in range(2):
        KINDS[name](A, out)
    assert (len(state.planned), len(described)) == (1, 2)
    # They live at once, so that none has the identity of another.
    others = [FakeTensor(0x10000 * number) for number in range(1, 6)]
    for number, a in enumerate(others, 1):
        result = KINDS[name](a, out)
        assert state.queued[-1][1][0] == a.address
        assert state.queued[-1][1][-1] == result.address
        assert len(state.queued) == 1 + number
    assert (len(state.planned), len(described), state.made_guards) == (1, 2, 1)


def test_new_arrays_of_a_transpose(state, described, monkeypatch):
    def plan_transpose(x, order_of, *, out, stream, executor):
        raise AssertionError("planned")

    queue = types.SimpleNamespace(
        no_overlap=lambda *given: True, queue=lambda *given: state.queued.append(given), new=None
    )
    planners.replaced(monkeypatch, "plan_transpose", plan_transpose)
    library = CALLS.library(FakeTensor)
    CALLS.by_shapes[None, A.shape, A.dtype, False] = library.replay(queue, (A, A), OUT, OUT)
    for address in (0x5000, 0x7000):
        assert gm.transpose(FakeTensor(address), out=OUT) is OUT
        assert state.queued[-1] == ((address, address, 0x3000), 7)
    assert not described


OTHERS = {
    "strides": FakeTensor(0x1000, stride=(1, 4)),
    "alignment": FakeTensor(0x1010),
    "another GPU": FakeTensor(0x1000, device=1),
    "negated": FakeTensor(0x1000, neg=True),
    "overlap": FakeTensor(0x3010),
    "type": FakeTensor(0x1000, dtype="float16"),
    "shape": FakeTensor(0x1000, (2, 4)),
    "B itself": B,
}


@pytest.mark.parametrize("name", OTHERS)
def test_arrays_of_another_kind_are_planned(state, described, name):
    for _ in range(2):
        gm.matmul(A, B, out=OUT)
    gm.matmul(OTHERS[name], B, out=OUT)
    assert (len(state.planned), len(described)) == (2, 3)
    # Those of the first kind are replayed as before.
    gm.matmul(FakeTensor(0x5000), B, out=OUT)
    assert (len(state.planned), len(described)) == (2, 3)


def test_an_output_that_is_c_is_not_taken_for_one_that_is_not(state, described):
    c = FakeTensor(0x6000)
    for _ in range(2):
        gm.gemm(A, B, c, beta=1.0, out=OUT)
    others = [FakeTensor(0x10000 * number) for number in range(1, 5)]
    for other in others:
        gm.gemm(A, B, other, beta=1.0, out=other)
    assert (len(state.planned), len(described)) == (2, 4)
    assert [addresses[2:] for _, addresses, _ in state.queued[1:]] == [(x.address,) * 2 for x in others[1:]]


def test_no_epilogue_args_are_as_good_as_none(state):
    for epilogue in ("relu", "silu", None):
        for _ in range(3):
            gm.gemm(A, B, bias=FakeTensor(0x5000, (4,)), epilogue=epilogue, epilogue_args={}, out=OUT)
            gm.gemm(A, B, bias=FakeTensor(0x5000, (4,)), epilogue=epilogue, out=OUT)
        assert len(state.planned) == 1 + ("relu", "silu", None).index(epilogue)


def test_without_arrays_that_have_shapes_nothing_is_replayed(state, described):
    for _ in range(2):
        gm.matmul(A, B, out=OUT)
    gm.matmul(A, 3.0, out=OUT)
    assert len(state.planned) == 2


def test_launches_are_made_once(launched, monkeypatch):
    """What the first execution packs is what the next one queues."""
    made, launches_of = [], execute.launches_of
    monkeypatch.setattr(repeated, "launches_of", lambda *given: made.append(given) or launches_of(*given))
    spec = next(spec for spec in REGISTRY if spec.name == "simt_gemm")
    problem = gemm_problem(64, 64, 64, "float32", "float32", "nn")
    assert isinstance(problem, GemmProblem)
    device, execution = types.SimpleNamespace(ordinal=0), Execution()
    for number, d in enumerate((0x3000, 0x4000, 0x5000), 1):
        pointers = {"a": 0x1000, "b": 0x2000, "d": d}
        choice.execute(problem, Choice(spec, spec.default), device, pointers, 7, execution)
        assert len(launched.made) == number
        (_, addresses, stream) = launched.made[-1]
        assert (addresses["d"], stream) == (d, 7)
    assert (len(made), len(launched.packed)) == (1, 1)
    execution.queue((0x1000, 0x2000, 0x6000), 8)
    assert launched.made[-1][1:] == ({"a": 0x1000, "b": 0x2000, "d": 0x6000}, 8)
    assert len(made) == 1
