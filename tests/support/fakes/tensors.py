"""Tensors that stand in for a GPU's, with a planner and a GPU that write down what they are asked."""

from __future__ import annotations

import contextlib
import itertools
import types

import numpy as np
import pytest

from gemmule.api.calls import dispatcher
from gemmule.api.calls.call_cache import CALLS
from gemmule.api.validation.product import ProductArguments
from gemmule.runtime.arrays.torch_calls import TorchArrays

from . import call_caches

NEW = itertools.count(0xA00000, 0x1000)


class FakeTensor:
    """What is asked of a tensor; its strides are in elements of four bytes."""

    def __init__(
        self, address, shape=(4, 4), stride=None, device=0, dtype="float32", grad=False, neg=False, conj=False
    ):
        self.address, self.shape, self.dtype, self.requires_grad = address, shape, dtype, grad
        self._stride = stride or tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
        self._device, self._neg, self._conj, self.device = device, neg, conj, f"cuda:{device}"

    def data_ptr(self):
        return self.address

    def stride(self):
        return self._stride

    def get_device(self):
        return self._device

    def is_neg(self):
        return self._neg

    def is_conj(self):
        return self._conj

    def element_size(self):
        return 4

    def new_empty(self, shape):
        return FakeTensor(next(NEW), shape, dtype=self.dtype)


class FakeParameter(FakeTensor):
    pass


class Subclass(FakeTensor):
    pass


class WithoutMemory(FakeTensor):
    def data_ptr(self):
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")


A, B, OUT = (FakeTensor(address) for address in (0x1000, 0x2000, 0x3000))


@pytest.fixture
def state():
    return types.SimpleNamespace(
        stream=7, gradients=True, modes=0, planned=[], queued=[], written=[], made=0, made_on=[], bias_is="c"
    )


@pytest.fixture(autouse=True)
def fake(monkeypatch, state):
    """A library, a planner and a GPU that write down what they are asked."""
    graph = types.SimpleNamespace(increment_version=lambda x: state.written.append(x.address))
    # Without tangents.
    forward_ad = types.SimpleNamespace(_current_level=-1)
    torch = types.SimpleNamespace(
        Tensor=FakeTensor,
        nn=types.SimpleNamespace(Parameter=FakeParameter),
        is_grad_enabled=lambda: state.gradients,
        _C=types.SimpleNamespace(
            _cuda_getCurrentRawStream=lambda device: state.stream + 100 * device,
            _len_torch_dispatch_stack=lambda: state.modes,
        ),
        autograd=types.SimpleNamespace(graph=graph, forward_ad=forward_ad),
        float16="float16",
    )

    def empty(shape, dtype, device):
        state.made += 1
        state.made_on.append(state.stream)
        return FakeTensor(0x900000 + 0x1000 * state.made, shape, dtype=dtype)

    @contextlib.contextmanager
    def on_stream(stream):
        before, state.stream = state.stream, stream
        yield
        state.stream = before

    torch.empty = empty
    torch.cuda = types.SimpleNamespace(stream=on_stream, ExternalStream=lambda stream, device: stream + 100 * device)
    library = TorchArrays(torch)

    def plan_product(operation, a, b, **options):
        state.planned.append((operation, a, b, options))
        result = options["out"] if options["out"] is not None else empty((4, 4), "float32", a.device)
        given = {"a": a, "b": b} | ({"c": options["c"]} if options.get("beta") else {})
        places = {role: (role, getattr(x, "address", 0)) for role, x in given.items()}
        if options["bias"] is not None:
            places[state.bias_is] = ("bias", options["bias"].address)
        plan = {"executor": "gpu", "choice": "choice", "problem": "problem", "places": places, "product": None}
        return types.SimpleNamespace(**plan, execute=lambda: result)

    def repeated(problem, choice, operands, addresses, ordinal):
        kind = (len(state.planned), operands, ordinal)
        return lambda addresses, stream: state.queued.append((kind, addresses, stream))

    libraries = {FakeTensor: library, FakeParameter: library, WithoutMemory: library}
    with call_caches.scripted(monkeypatch, plan_product, repeated, libraries):
        yield library


@pytest.fixture
def guarded(fake, state):
    """Give the library a guard, which counts how often it is made and asked."""
    state.made_guards = state.asked = 0

    def kind(x):
        return type(x), x.shape, x.stride(), x.dtype, x.get_device(), x.is_neg(), x.requires_grad, state.gradients

    def guards(*tensors):
        state.made_guards += 1
        kinds = [kind(x) for x in tensors]

        def check(*others):
            state.asked += 1
            # As PyTorch's own.
            if len(others) != len(kinds):
                raise TypeError("wrong length")
            return len(set(map(id, others))) == len(others) and [kind(x) for x in others] == kinds

        return check

    fake._guards, fake.guarded = guards, True
    return state


def matmul(a, b, out=None, *, out_dtype=None, precision=None, stream=None, executor=None):
    return dispatcher.product(ProductArguments("matmul", a, b, None, 1, 0, out, out_dtype, precision, stream, executor))


def gemm(a, b, c=None, *, alpha=1.0, beta=0.0, out=None, bias=None, **more):
    return dispatcher.product(ProductArguments("gemm", a, b, c, alpha, beta, out, bias=bias, **more))


@pytest.fixture
def retained(monkeypatch):
    """Return what is kept alive for a stream."""
    return call_caches.retained(monkeypatch)


def again(a, b, out=None):
    """Call matmul as the public function does; return the result and whether the arrays were found."""
    repeat = CALLS.by_identity.get((id(a), id(b), id(out)))
    result = repeat(a, b, out) if repeat is not None else None
    return (matmul(a, b, out), False) if result is None else (result, True)
