"""Repeated products of host arrays: computed without a plan, and exactly as by one."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gemmule as gm
from gemmule.api.calls.call_cache import CALLS
from gemmule.core.errors import GemmuleError
from support.fakes import planners
from support.host_layouts import LAYOUTS, filled

DTYPES = ["?", "i1", "u2", "i4", "i8", "u8", "e", "f", "d", "F", "D", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]


@pytest.fixture(autouse=True)
def planned(monkeypatch):
    """Count the plans, with no call known."""
    yield planners.counted(monkeypatch)
    CALLS.forget()


USUAL = [*LAYOUTS][:4]


@st.composite
def calls(draw):
    """Draw the arguments of gemm or matmul, as a function that makes the same ones afresh."""
    seed = draw(st.integers(0, 2**32 - 1))
    # Mostly what is right, sometimes anything.
    sound = draw(st.integers(0, 3)) > 0
    layouts = [draw(st.sampled_from(USUAL if sound else [*LAYOUTS])) for _ in range(5)]
    m, n, k = (draw(st.integers(0, 20)) for _ in range(3))
    if draw(st.integers(0, 9)) == 0:
        k = 3000
    a_kind, b_kind = draw(st.sampled_from(["", "m", "bm", "1m"])), draw(st.sampled_from(["", "n", "bn"]))
    dtypes = [draw(st.sampled_from(DTYPES)) for _ in range(4)]
    if sound:
        dtypes[1] = dtypes[0]
    operation = draw(st.sampled_from(["matmul", "gemm"]))
    alpha, beta = draw(st.sampled_from([1, 2, 0.5, 0, -1.0])), draw(st.sampled_from([0, 1, -2, 0.25]))
    extra = {name for name in ("c", "bias", "epilogue", "dtype") if draw(st.integers(0, 3)) == 0}
    out_is = draw(st.sampled_from([None, "new", "new", "c", "a", "wrong", "overlapping"]))

    def made():
        rng = np.random.default_rng(seed)
        of = {"m": m, "n": n, "b": 3, "1": 1}
        a = filled((*(of[x] for x in a_kind), k), dtypes[0], rng, layouts[0])
        b_lead = [of[x] for x in b_kind]
        b = filled((*b_lead[:-1], k, *b_lead[-1:]), dtypes[1], rng, layouts[1])
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        result = (*batch, *([m] if a_kind else []), *([n] if b_kind else []))
        options = {}
        if "dtype" in extra:
            options["out_dtype"] = np.dtype(dtypes[2])
        if operation == "gemm":
            options |= {"alpha": alpha}
            if "c" in extra or beta:
                options |= {"c": filled(result, dtypes[2], rng, layouts[2]), "beta": beta}
            if "bias" in extra:
                options["bias"] = filled((n,), dtypes[2], rng, layouts[3])
            if "epilogue" in extra:
                options["epilogue"] = "relu"
        if out_is in ("new", "wrong"):
            shape = (*result, 1) if out_is == "wrong" else result
            options["out"] = filled(shape, dtypes[3] if not sound else dtypes[0], rng, layouts[4])
        elif out_is == "overlapping":
            memory = filled((*result[:-1], *(extent + 1 for extent in result[-1:])), dtypes[0], rng)
            options["out"] = memory[..., :-1] if result else memory
            if operation == "gemm" and result:
                options |= {"c": memory[..., 1:], "beta": 1}
        elif out_is == "c":
            options["out"] = options.get("c")
        elif out_is == "a":
            options["out"] = a
        return operation, a, b, options

    return made


def outcome(function, a, b, options):
    """Return the result's bits, or the error."""
    options = dict(options)
    third = [options.pop("c")] if "c" in options else []
    try:
        result = function(a, b, *third, **options)
    except GemmuleError as error:
        return type(error), str(error)
    assert options.get("out") is None or result is options["out"]
    return type(result), result.dtype, result.shape, result.strides, np.ascontiguousarray(result).tobytes()


@settings(deadline=None, max_examples=600)
@given(calls())
def test_every_call_is_as_its_plan(made):
    operation, *rest = made()
    function = getattr(gm, operation)
    expected = outcome(lambda *given, **options: function.plan(*given, **options).execute(), *rest)
    for _ in range(3):
        assert outcome(function, *made()[1:]) == expected


@pytest.mark.parametrize("layout", ["rows", "columns", "strided", "reversed", "unaligned"])
@pytest.mark.parametrize("k", [2, 300, 2048, 2049, 5000])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_small_products_are_as_their_plans(dtype, k, layout):
    rng = np.random.default_rng(k)
    a, b = filled((15, k), dtype, rng, layout), filled((k, 6), dtype, rng, "strided")
    np.testing.assert_array_equal(gm.matmul(a, b), gm.matmul.plan(a, b).execute())


def x(dtype="f2", shape=(4, 4)):
    return np.ones(shape, dtype)


KNOWN = {
    "half": lambda: gm.matmul(x(), x()),
    "integers": lambda: gm.matmul(x("i4"), x("i4")),
    "complex": lambda: gm.matmul(x("F"), x("F"), out=x("F")),
    "transposed": lambda: gm.matmul(x("D"), x("D", (5, 4)).T),
    "vectors": lambda: gm.matmul(x("d", 4), x("d", 4)),
    "a broadcast batch": lambda: gm.matmul(x("d", (3, 4, 4)), x("d")),
    "another type": lambda: gm.matmul(x("i1"), x("i1"), out_dtype="int32"),
    "an executor": lambda: gm.matmul(x("d"), x("d"), executor="cpu"),
    "scaled": lambda: gm.gemm(x("d"), x("d"), alpha=2),
    "added": lambda: gm.gemm(x("d"), x("d"), x("d"), beta=1.0, out=x("d")),
    "a bias": lambda: gm.gemm(x("d"), x("d"), bias=x("d", 4), epilogue="relu"),
}


@pytest.mark.parametrize("call", KNOWN.values(), ids=KNOWN)
def test_the_second_call_is_not_planned(call, planned):
    first = call()
    assert len(planned) == 1
    np.testing.assert_array_equal(call(), first)
    assert len(planned) == 1


def base(a=None, b=None, out=None, **options):
    a, b = (x() if given is None else given for given in (a, b))
    return gm.gemm(a, b, out=x() if out is None else out, **options)


def overlapping(memory, **options):
    return base(out=memory[:4], **{name: memory[place : place + 4] for name, place in options.items()})


FROZEN = x()
FROZEN.flags.writeable = False
PLANNED = {
    "a subclass": lambda: base(LAYOUTS["subclass"](x())),
    "a subclass as B": lambda: base(b=LAYOUTS["subclass"](x())),
    "foreign byte order": lambda: base(LAYOUTS["foreign"](x())),
    "not aligned": lambda: base(LAYOUTS["unaligned"](x())),
    "another shape": lambda: base(x("f2", (5, 4)), out=x("f2", (5, 4))),
    "other strides": lambda: base(x().T[::-1]),
    "other strides of the output": lambda: base(out=np.asfortranarray(x())),
    "another type": lambda: base(x("f4")),
    "another type of the output": lambda: base(out=x("f4")),
    "a scalar": lambda: base(alpha=2),
    "a precision": lambda: base(precision="ieee"),
    "an executor": lambda: base(executor="cpu"),
    "a bias": lambda: base(bias=x("f4", 4)),
    "an epilogue": lambda: base(epilogue="relu"),
    "a function": lambda: base(epilogue=lambda acc: acc),
    "a maximum": lambda: base(absmax=np.empty(1, "f4")),
    "matmul": lambda: gm.matmul(x(), x(), x()),
}
REFUSED = {
    "out is A": lambda: base(FROZEN, out=FROZEN),
    "out is B": lambda: base(b=FROZEN, out=FROZEN.view()),
    "out overlaps A": lambda: overlapping(x(shape=(6, 4)), a=2),
    "out overlaps B": lambda: overlapping(x(shape=(6, 4)), b=2),
    "out is read-only": lambda: base(out=FROZEN),
    "C is not read": lambda: base(c=x()),
    "another extent": lambda: base(b=x(shape=(5, 4))),
    "a stream": lambda: base(stream=1),
    "a list": lambda: base(x().tolist()),
    "an option that cannot be hashed": lambda: base(precision=[]),
}


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


def test_c_that_overlaps_the_output_is_planned(planned):
    memory = np.ones((6, 4), "f2")
    for _ in range(2):
        base(c=x(), beta=1)
    assert len(planned) == 1
    with pytest.raises(gm.OverlapError, match="out shares memory with c"):
        base(c=memory[2:], beta=1, out=memory[:4])
    with pytest.raises(gm.OverlapError, match="out shares memory with bias"):
        base(c=x(), beta=1, bias=memory[0], out=memory[:4])


def test_c_that_is_the_output_is_known(planned):
    for count in range(1, 4):
        c = np.full((4, 4), count, "f2")
        assert gm.gemm(x(), x(), c, beta=2, out=c) is c
        assert (c == 4 + 2 * count).all()
    assert len(planned) == 1


def test_the_environment_is_read_at_every_call(planned, monkeypatch):
    for _ in range(2):
        base()
    monkeypatch.setenv("GEMMULE_EXECUTOR", "nowhere")
    with pytest.raises(gm.ArgumentError, match="GEMMULE_EXECUTOR='nowhere' is not known"):
        base()


def test_results_are_new_arrays(planned):
    first, second = gm.matmul(x(), x()), gm.matmul(x() * 2, x())
    assert len(planned) == 1
    assert (first == 4).all()
    assert (second == 8).all()


def test_the_oldest_call_is_evicted(planned, monkeypatch):
    planners.limited(monkeypatch, MOST_CALLS=2)
    for alpha in (1, 2, 3, 3, 2, 1):
        base(alpha=alpha)
    assert len(planned) == 4


def test_memory_that_runs_out_is_told_as_by_the_plan(monkeypatch):
    def short(*_, **__):
        raise MemoryError("Unable to allocate 8.00 EiB")

    base()
    monkeypatch.setattr(np, "matmul", short)
    with pytest.raises(gm.HostMemoryError, match=r"on the way to a result of shape \(4, 4\).*8.00 EiB"):
        base()


def test_no_warning_of_what_is_not_finite():
    big = np.full((4, 4), 6e4, "f2")
    for _ in range(2):
        assert np.isinf(gm.matmul(big, big)).all()


@pytest.mark.parametrize("out", [False, True])
def test_a_gated_form_whose_b_holds_both_factors(out, rng):
    a, b = rng.standard_normal((3, 5)), rng.standard_normal((5, 8))
    expected = gm.gemm.plan(a, b, epilogue="swiglu").execute()
    for _ in range(3):
        got = gm.gemm(a, b, epilogue="swiglu", out=np.full((3, 4), np.nan) if out else None)
        np.testing.assert_array_equal(got, expected)
