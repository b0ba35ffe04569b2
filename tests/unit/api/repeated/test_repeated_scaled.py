"""Scaled products and quantisations that were computed before, on tensors that stand in for a GPU's."""

from __future__ import annotations

import types

import numpy as np
import pytest

import gemmule as gm
from gemmule.api import quantization
from gemmule.api import scaled as scaled_functions
from gemmule.api.planning.plan import Execution
from gemmule.core.errors import ShapeError
from support.fakes.plans import plans
from support.fakes.tensors import OUT, FakeTensor, fake, guarded, retained, state

__all__ = ["fake", "guarded", "plans", "retained", "state"]

FLOAT8 = "float8_e4m3fn"
A, B = FakeTensor(0x1000, (4, 4), dtype=FLOAT8), FakeTensor(0x2000, (4, 4), (1, 4), dtype=FLOAT8)
ROWS, COLUMNS = FakeTensor(0x4000, (4, 1)), FakeTensor(0x5000, (1, 4))
BIAS, FACTOR = FakeTensor(0x6000, (4,)), FakeTensor(0x7000, (1,))


@pytest.fixture
def checked(monkeypatch):
    """Calls whose arguments were checked."""
    found, arguments = [], scaled_functions._arguments

    def recorded(*given, **options):
        found.append(given)
        return arguments(*given, **options)

    monkeypatch.setattr(scaled_functions, "_arguments", recorded)
    return found


def last(state):
    (_, operands, _), addresses, stream = state.queued[-1]
    return dict(zip(operands, addresses, strict=True)), stream


def test_the_second_product_is_neither_checked_nor_planned(state, checked):
    for _ in range(2):
        assert gm.scaled_gemm(A, B, ROWS, COLUMNS, bias=BIAS, scale_result=FACTOR, out=OUT) is OUT
    assert (len(checked), len(state.planned)) == (1, 1)
    assert last(state) == ({"a": 0x1000, "b": 0x2000, "e0": 0x7000, "e1": 0x6000, "e2": 0x5000, "e3": 0x4000,
                            "d": 0x3000}, 7)  # fmt: skip
    state.stream = 9
    others = [FakeTensor(x.address + 0x100000, x.shape, x.stride(), dtype=x.dtype) for x in (A, B, ROWS, COLUMNS)]
    gm.scaled_gemm(*others, bias=BIAS, scale_result=FACTOR, out=OUT)
    assert (len(checked), len(state.planned)) == (1, 1)
    assert last(state) == ({"a": 0x101000, "b": 0x102000, "e0": 0x7000, "e1": 0x6000, "e2": 0x105000, "e3": 0x104000,
                            "d": 0x3000}, 9)  # fmt: skip
    results = [gm.scaled_gemm(A, B, ROWS, COLUMNS) for _ in range(3)]
    assert (len(checked), len(state.planned)) == (2, 2)
    assert last(state)[0]["d"] == results[-1].address != results[-2].address


def test_the_third_product_is_replayed(state, checked, guarded):
    """A guard lets the operands and both scales through; other kinds, and an output that overlaps, it does not."""
    for _ in range(2):
        gm.scaled_gemm(A, B, ROWS, COLUMNS, out=OUT)
    assert (state.made_guards, state.asked) == (1, 0)
    rows, out = FakeTensor(0x14000, (4, 1)), FakeTensor(0x13000)
    assert gm.scaled_gemm(A, B, rows, COLUMNS, out=out) is out
    assert (state.made_guards, state.asked) == (1, 1)
    assert last(state) == ({"a": 0x1000, "b": 0x2000, "e0": 0x5000, "e1": 0x14000, "d": 0x13000}, 7)
    gm.scaled_gemm(A, B, FakeTensor(0x14004, (4, 1)), COLUMNS, out=out)
    assert len(checked) == 2, "an alignment of its own"
    gm.scaled_gemm(A, B, FakeTensor(out.address, (4, 1)), COLUMNS, out=out)
    assert len(checked) == 3, "left to the plan, which refuses an overlap"
    column = FakeTensor(0x14000, (4, 1))
    for count, result in ((4, FakeTensor(0x15000, (4, 1))), (5, column)):
        for _ in range(2 if result is not column else 1):
            gm.scaled_gemm(A, FakeTensor(0x2000, (4, 1), dtype=FLOAT8), column, FACTOR, out=result)
        assert len(checked) == count, "nor a scale as output"
    results = [gm.scaled_gemm(A, B, ROWS, COLUMNS) for _ in range(4)]
    assert len(checked) == 6
    assert last(state)[0]["d"] == results[-1].address != results[-2].address


OTHERS = {
    "no bias": lambda: gm.scaled_gemm(A, B, ROWS, COLUMNS, scale_result=FACTOR, out=OUT),
    "a factor of the result": lambda: gm.scaled_gemm(A, B, ROWS, COLUMNS, bias=BIAS, out=OUT),
    "one scale": lambda: gm.scaled_gemm(A, B, FACTOR, COLUMNS, bias=BIAS, scale_result=FACTOR, out=OUT),
    "the type of the result": lambda: gm.scaled_gemm(A, B, ROWS, COLUMNS, bias=BIAS, scale_result=FACTOR),
    "the maximum": lambda: gm.scaled_gemm(A, B, ROWS, COLUMNS, bias=BIAS, scale_result=FACTOR, out=OUT,
                                          absmax=FakeTensor(0x9000, (1,))),
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS)
def test_other_products_are_checked(state, checked, other):
    gm.scaled_gemm(A, B, ROWS, COLUMNS, bias=BIAS, scale_result=FACTOR, out=OUT)
    OTHERS[other]()
    assert len(checked) == 2
    gm.scaled_gemm(A, B, ROWS, COLUMNS, bias=BIAS, scale_result=FACTOR, out=OUT)
    assert len(checked) == 2


def test_a_bias_is_no_factor(state, checked):
    column = FakeTensor(0x2000, (4, 1), dtype=FLOAT8)
    gm.scaled_gemm(A, column, ROWS, FACTOR, bias=FakeTensor(0x8000, (1,)))
    gm.scaled_gemm(A, column, ROWS, FACTOR, scale_result=FakeTensor(0x8000, (1,)))
    assert len(checked) == 2


def test_converted_scales_are_converted_again(state, checked):
    """They are other arrays at each call, which the product reads."""
    exponents = FakeTensor(0x8000, (4, 1), dtype="float8_e8m0fnu")
    exponents.astype = lambda dtype: FakeTensor(0x8000 + 0x100 * len(checked), (4, 1), dtype=dtype)
    gm.scaled_gemm(A, B, exponents, COLUMNS, out=OUT)
    for count in (2, 3):
        gm.scaled_gemm(A, B, exponents, COLUMNS, out=OUT)
        assert len(checked) == count
        assert last(state)[0]["e1"] == 0x8000 + 0x100 * count


def test_an_output_that_overlaps_is_left_to_the_plan(state, checked):
    for _ in range(2):
        gm.scaled_gemm(A, B, ROWS, COLUMNS, out=OUT)
    gm.scaled_gemm(A, B, FakeTensor(OUT.address, (4, 1)), COLUMNS, out=OUT)
    assert len(checked) == 2


def test_errors_are_those_of_the_first_call(state, checked):
    for _ in range(2):
        with pytest.raises(ShapeError, match="scale_a has shape"):
            gm.scaled_gemm(A, B, FakeTensor(0x4000, (4,)), COLUMNS)
    assert len(checked) == 2


@pytest.fixture
def quantized(monkeypatch, fake, state):
    """Plans of quantisations, which write down what they are of."""
    launches = []

    def plan(x, *, by, dtype, scale_dtype, stream, executor):
        state.planned.append((x, by, dtype, scale_dtype, stream, executor))
        scales = (*x.shape[:-1], 2 if by == "block" else 1)
        result = FakeMatrix(0x700000, x.shape), FakeMatrix(0x710000, scales)
        queue = (lambda addresses, on: launches.append((addresses, on))) if x.address & 1 == 0 else None
        return types.SimpleNamespace(execute=lambda: result, execution=Execution(queue))

    class FakeMatrix(FakeTensor):
        @property
        def T(self):
            return FakeMatrix(self.address, self.shape[::-1])

        def reshape(self, *shape):
            shape = shape[0] if isinstance(shape[0], tuple) else shape
            count = int(np.prod(self.shape))
            known = -int(np.prod(shape))
            return FakeMatrix(self.address, tuple(count // known if x == -1 else x for x in shape))

    def maker(x):
        made = iter(range(1, 100))
        return lambda: FakeMatrix(x.address + 0x1000 * next(made), x.shape)

    monkeypatch.setattr(quantization, "_plan", plan)
    monkeypatch.setattr(fake, "maker", maker)
    return launches


@pytest.mark.parametrize(
    ("shape", "by", "scales", "memory"),
    [((6, 256), "row", (6, 1), 0x711000), ((6, 256), "block", (6, 2), 0x711000),
     ((3, 6, 256), "row", (3, 6, 1), 0x711000), ((3, 6, 256), "block", (3, 6, 2), 0x711000)],
)  # fmt: skip
def test_the_second_quantisation_is_not_planned(state, quantized, shape, by, scales, memory):
    gm.quantize(FakeTensor(0x1000, shape), by=by)
    found = gm.quantize(FakeTensor(0x2000, shape), by=by)
    assert len(state.planned) == 1
    assert [x.shape for x in found] == [shape, scales]
    assert quantized == [((0x2000, 0x701000, memory), 7)]
    gm.quantize(FakeTensor(0x2000, shape), by=by, dtype="float8_e5m2")
    gm.quantize(FakeTensor(0x2000, shape), by="tensor")
    gm.quantize(FakeTensor(0x2000, shape[::-1]), by=by)
    gm.quantize(FakeTensor(0x2004, shape), by=by)
    gm.quantize(FakeTensor(0x2000, shape), by=by, executor="gpu")
    assert len(state.planned) == 6


def test_several_launches_are_planned_each_time(state, quantized):
    for _ in range(2):
        gm.quantize(FakeTensor(0x1001, (3, 6, 256)), by="tensor")
    assert len(state.planned) == 2
