"""Grouped products of arrays on a GPU, without one: what is launched, with which addresses, and what is zeroed."""

from __future__ import annotations

import types

import pytest

from gemmule.api.planning import device_products, grouped_device_products
from gemmule.api.planning.grouped_products import plan_groups
from gemmule.api.validation import grouped_product
from gemmule.api.validation.grouped_product import GroupedArguments
from gemmule.api.validation.operands import Operands
from gemmule.core.arch import Arch
from gemmule.core.layout import compact_strides
from gemmule.runtime import repeated
from gemmule.runtime.arrays import ArrayView
from gemmule.runtime.arrays.view import NewArray

DEVICE = types.SimpleNamespace(arch=Arch.parse("sm_90a"), multiprocessors=132, name="NVIDIA H200", ordinal=0)
#: Where arrays begin, by role; the output and other new arrays come behind them.
AT = {"a": 0x10000, "b": 0x20000, "offsets": 0x30000, "matrices": 0x30000, "bias": 0x40000}
OUT, STREAM = 0x900000, 7


def view(role, shape, dtype):
    item = {"bfloat16": 2, "int32": 4, "float32": 4}[dtype]
    strides = compact_strides(shape)
    if role == "b":
        # Weights lie K-major.
        strides = (shape[1] * shape[2], 1, max(shape[1], 1))
    return ArrayView(shape, dtype, item, 0, None, AT[role], strides)


class Library:
    name, orders_reuse = "torch", True

    def __init__(self):
        self.new = []

    def current_stream(self, device):
        return STREAM

    def empty(self, shape, dtype, like, stream):
        self.new.append((shape, dtype))
        at = OUT + 0x100000 * (len(self.new) - 1)
        return NewArray(ArrayView(shape, dtype, 2, 0, None, at, compact_strides(shape)), lambda: "result")


@pytest.fixture
def launched(monkeypatch):
    """Operands by what the caller names, and a list of what is queued."""
    found, library = [], Library()

    def gather(arrays, stream, specs):
        assert not specs
        views = {role: view(role, x.shape, x.dtype) for role, x in arrays.items() if x is not None}
        return Operands(library, views, 0, stream, None)

    def queue_of(problem, choice, names, addresses, ordinal):
        return lambda given, stream: found.append((dict(zip(names, given, strict=True)), stream))

    monkeypatch.setattr(grouped_product, "gather", gather)
    for module in (device_products, grouped_device_products):
        monkeypatch.setattr(module, "get_device", lambda ordinal: DEVICE)
    monkeypatch.setattr(repeated, "repeated", queue_of)
    monkeypatch.setattr(grouped_device_products, "clear", lambda *given: found.append(given))
    device_products.problem_queue.cache_clear()
    yield found
    device_products.problem_queue.cache_clear()


def array(*shape, dtype="bfloat16"):
    return types.SimpleNamespace(shape=shape, dtype=dtype)


def plan(k, groups=2, **given):
    names = ("bias", "epilogue", "out", "out_dtype", "precision", "stream", "executor")
    operands = {"a": array(6, k), "b": array(groups, k, 32), "offsets": array(groups, dtype="int32")}
    return plan_groups(GroupedArguments(**(dict.fromkeys(names) | operands | given)))


def test_addresses_of_operands(launched):
    of_rows = plan(64)
    assert of_rows.execute() == "result"
    assert launched == [({"a": AT["a"], "b": AT["b"], "offsets": AT["offsets"], "d": OUT}, STREAM)]
    assert dict(of_rows.places) == {name: (name, AT[name]) for name in ("a", "b", "offsets")}
    assert (of_rows.executor, of_rows.kernel, of_rows.flop) == ("gpu", "hopper_grouped", 2 * 6 * 32 * 64)


def test_of_a_gated_form_both_halves(launched):
    plan(64, bias=array(2, 32, dtype="float32"), epilogue="swiglu").execute()
    ((given, _),) = launched
    assert given["u"] == AT["b"] + 16 * 64 * 2
    assert {given["e0"], given["e1"]} == {AT["bias"], AT["bias"] + 16 * 4}
    assert [*given][-1] == "d"


def test_a_bias_of_nothing_is_added_to_zeros(launched):
    of_nothing = plan(0, bias=array(2, 32, dtype="float32"))
    of_nothing.execute()
    cleared, (given, _) = launched
    zeros = OUT + 0x100000
    assert cleared == (zeros, 2 * 32 * 8 * 2, 0, STREAM)
    assert given == {"a": zeros, "b": zeros, "offsets": AT["offsets"], "e0": AT["bias"], "d": OUT}
    # It is planned anew each time.
    assert of_nothing.problem is None


@pytest.mark.parametrize(("k", "given"), [(0, {}), (64, {"groups": 0}), (64, {"groups": 0, "epilogue": "relu"})])
def test_what_adds_up_nothing_is_zeroed(launched, k, given):
    zeroed = plan(k, **given)
    zeroed.execute()
    assert launched == [(OUT, 6 * 32 * 2, 0, STREAM)]
    assert (zeroed.kernel, zeroed.problem) == ("memset", None)


@pytest.mark.parametrize("groups", [2, 0])
def test_rows_that_name_their_matrices(launched, groups):
    plan(64, groups, offsets=None, matrices=array(6, dtype="int32"), epilogue="relu").execute()
    if groups:
        assert launched == [({"a": AT["a"], "b": AT["b"], "matrices": AT["matrices"], "d": OUT}, STREAM)]
    else:
        assert launched == [(OUT, 6 * 32 * 2, 0, STREAM)]
