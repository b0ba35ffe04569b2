"""Gated activations and the absolute maximum without a device: results on the host, refusals, kernels' reasons."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.epilogues.ending import ending_of
from gemmule.api.epilogues.gated import GATE_BIAS, SECOND, UP_BIAS, with_halves
from gemmule.core.dtype import Precision, dtype_named
from gemmule.core.epilogue import Epilogue, Expression
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.tile_config import MAX_SHARED_BYTES
from gemmule.runtime.arrays import ArrayView
from support.epilogue_cases import erf, gelu_tanh, silu

M, N, K = 5, 7, 11
GATES = {
    "swiglu": silu,
    "geglu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "geglu_tanh": gelu_tanh,
    "reglu": lambda x: np.maximum(x, 0),
}


def cut(x, storage):
    half = x.shape[-1] // 2
    return (x[..., :half], x[..., half:]) if storage == "halves" else (x[..., ::2], x[..., 1::2])


@pytest.mark.parametrize("storage", ["halves", "pairs"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted(GATES))
def test_named_forms_on_the_host(name, dtype, storage, rng):
    kind = dtype_named(dtype).numpy()
    a, b, bias = (rng.standard_normal(shape).astype(kind) for shape in ((3, M, K), (K, 2 * N), (2 * N,)))
    out = np.full((3, M, N), np.nan).astype(kind)
    assert gm.gemm(a, b, bias=bias, epilogue=name, gated=storage, alpha=0.5, executor="cpu", out=out) is out
    gate, up = cut(0.5 * (a.astype("f8") @ b.astype("f8")) + bias.astype("f8"), storage)
    unit = max(dtype_named(dtype).unit_roundoff, 2.0**-53)
    np.testing.assert_allclose(out.astype("f8"), GATES[name](gate) * up, rtol=2 * unit, atol=2000 * min(unit, 2.0**-24))


def test_the_names_take_halves_by_themselves(rng):
    a, b = rng.standard_normal((M, K)), rng.standard_normal((K, 2 * N))
    rows = rng.standard_normal((M, 1))
    gate, up = cut(a @ b + rows, "halves")
    np.testing.assert_allclose(gm.gemm(a, b, bias=rows, epilogue="swiglu"), silu(gate) * up)
    # A vector has one row.
    np.testing.assert_allclose(
        gm.gemm(a[0], b, epilogue="reglu"), np.prod([np.maximum(a[0] @ b[:, :N], 0), a[0] @ b[:, N:]], 0)
    )


@pytest.mark.parametrize("storage", ["halves", "pairs"])
def test_the_halves_of_an_array_in_device_memory(storage):
    b, bias = (ArrayView((3, 4, 10), "float16", 2, 0, address=4096, strides=(80, 1, 4)),
               ArrayView((10,), "float32", 4, 0, address=512, strides=(3,)))  # fmt: skip
    cut = with_halves({"a": b, "b": b, "bias": bias}, storage)
    gate, up, first, second = (cut[role] for role in ("b", SECOND, GATE_BIAS, UP_BIAS))
    apart, step = (5, 1) if storage == "halves" else (1, 2)
    assert gate.shape == up.shape == (3, 4, 5)
    assert gate.strides == up.strides == (80, 1, 4 * step)
    assert (gate.address, up.address) == (4096, 4096 + 2 * 4 * apart)
    assert (first.address, second.address, first.strides) == (512, 512 + 4 * 3 * apart, (3 * step,))
    assert cut["a"] is b
    assert "bias" not in cut


def test_a_function_of_two_products(rng):
    a, b, c = rng.standard_normal((M, K)), rng.standard_normal((K, 2 * N)), rng.standard_normal((M, N))
    gate, up = cut(a @ b, "pairs")
    got = gm.gemm(
        a, b, c, gated="pairs", epilogue=lambda gate, up, c, s: s * gm.epilogue.tanh(gate) * (up + 1) + c,
        epilogue_args={"s": 0.25},
    )  # fmt: skip
    np.testing.assert_allclose(got, 0.25 * np.tanh(gate) * (up + 1) + c)
    # One that leaves the second away is a product of half of the columns.
    np.testing.assert_allclose(gm.gemm(a, b, gated="pairs", epilogue=lambda gate, up: gate + 1), gate + 1)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_two_matrices_are_the_halves_of_one(batch, rng):
    a, gates, ups = (rng.standard_normal((*batch, *shape)) for shape in ((M, K), (K, N), (K, N)))
    options = {"bias": rng.standard_normal(2 * N), "epilogue": "swiglu"}
    whole = gm.gemm(a, np.concatenate([gates, ups], -1), **options)
    np.testing.assert_allclose(gm.gemm(a, gates, gated=ups, **options), whole)
    with pytest.raises(gm.OverlapError, match="out shares memory with up"):
        gm.gemm(a, gates, gated=ups, out=ups[..., :M, :], **options)


def test_a_form_is_known_by_what_it_does():
    named, arrays = ending_of("swiglu", np.ones(2 * N), None, None, gated=True)
    traced, _ = ending_of(lambda x, y: y * gm.epilogue.silu(x), np.ones(2 * N), None, None, gated=True)
    assert named == traced
    assert named.expression.gated
    assert list(arrays) == ["bias"]
    other, _ = ending_of(lambda x, y: x * gm.epilogue.silu(y), np.ones(2 * N), None, None, gated=True)
    assert other.expression != named.expression


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (gm.ArgumentError, "gated='both' is not known; choose 'halves'", {"gated": "both", "epilogue": "swiglu"}),
        (gm.ArgumentError, "gated='halves' needs an epilogue of two values, not None", {"gated": "halves"}),
        (gm.ArgumentError, "not 'relu'; choose one of 'swiglu'", {"gated": "pairs", "epilogue": "relu"}),
        (gm.ArgumentError, "needs gated='halves' or", {"epilogue": lambda gate, up: gate * up}),
        (gm.ArgumentError, "takes one product, but a gated", {"gated": "halves", "epilogue": lambda gate: gate}),
        (gm.ArgumentError, "names bias, which is added", {"gated": "halves", "epilogue": lambda gate, up, bias: up}),
        (gm.ArgumentError, "beta=1.0 adds c", {"epilogue": "swiglu", "c": np.ones((M, N)), "beta": 1}),
        (gm.ShapeError, r"bias has shape \(7,\); of a gated", {"epilogue": "swiglu", "bias": np.ones(N)}),
        (gm.ShapeError, r"out has shape \(5, 14\)", {"epilogue": "swiglu", "out": np.ones((M, 2 * N))}),
        (
            gm.ShapeError,
            r"b has shape \(11, 13\); of a gated activation .* an even number of columns.* up as gated",
            {"epilogue": "swiglu", "b": np.ones((K, 13))},
        ),
        (gm.ShapeError, r"b has shape \(11,\)", {"epilogue": "swiglu", "b": np.ones(K)}),
        (gm.ShapeError, r"gated \(11, 7\); both must", {"epilogue": "swiglu", "gated": np.ones((K, N))}),
        (gm.DTypeError, "gated float32; convert", {"epilogue": "swiglu", "gated": np.ones((K, 2 * N), "f4")}),
        (gm.ArgumentError, "gated needs an epilogue of two values", {"gated": np.ones((K, 2 * N))}),
        (gm.DTypeError, "product of real floats", {"epilogue": "swiglu", "b": np.ones((K, 2 * N), np.complex64)}),
    ],
)
def test_what_is_no_gated_form(error, message, options):
    given = {"b": np.ones((K, 2 * N)), **options}
    with pytest.raises(error, match=message):
        gm.gemm(np.ones((M, K)), given.pop("b"), **given)


def test_the_absolute_maximum_on_the_host(rng):
    a, b = rng.standard_normal((3, M, K)).astype("f4"), rng.standard_normal((K, N)).astype("f4")
    largest = np.full((), 1e30, np.float32)
    half = gm.gemm(a, b, epilogue=lambda acc: -acc * acc, absmax=largest, out_dtype="float16")
    exact = (a.astype("f8") @ b) ** 2
    np.testing.assert_allclose(largest, exact.max(), 1e-5)
    # It is not what it was rounded to.
    assert half.dtype == np.float16
    assert float(largest) != float(np.abs(half).max())
    a[1, 2, 3] = np.nan
    gm.gemm(a, b, absmax=largest)
    assert np.isnan(largest)
    a[1, 2, 3] = -np.inf
    gm.gemm(a, b, absmax=largest, executor="cpu")
    assert largest == np.inf
    gm.gemm(a[:, :0], b, absmax=largest)
    assert largest == 0
    gm.gemm(a[0], np.concatenate([b, b], 1), epilogue="swiglu", absmax=largest)


@pytest.mark.parametrize(
    ("error", "message", "absmax"),
    [
        (gm.DTypeError, "absmax is float64; it must be one float32", np.zeros(1)),
        (gm.ShapeError, r"absmax has shape \(2,\); it must hold one element", np.zeros(2, np.float32)),
        (gm.ArgumentError, "absmax is read-only", np.broadcast_to(np.float32(0), (1,))),
        (gm.ArgumentError, "absmax is read-only", np.float32(0)),
    ],
)
def test_what_is_no_place_for_the_maximum(error, message, absmax):
    x = np.ones((3, 3), np.float32)
    with pytest.raises(error, match=message):
        gm.gemm(x, x, absmax=absmax)


def test_products_that_keep_no_maximum():
    largest, x = np.zeros(1, np.float32), np.ones((3, 3), np.float32)
    with pytest.raises(gm.DTypeError, match="float64 x float64 is computed in float64"):
        gm.gemm(x.astype("f8"), x.astype("f8"), absmax=largest)
    with pytest.raises(gm.DTypeError, match="absmax: integer results take no bias"):
        gm.gemm(x.astype("i1"), x.astype("i1"), absmax=largest)
    for role in ("a", "out"):
        given = {"a": x, "out": np.ones((3, 3), np.float32)}
        with pytest.raises(gm.OverlapError, match=f"absmax shares memory with {role}"):
            gm.gemm(given["a"], x.copy(), out=given["out"], absmax=given[role][:1, 1])


KIND = dtype_named("bfloat16")
SWIGLU = Expression(("up", "acc", "gate 1 1", "mul 0 2"))


def problem(m=256, n=192, k=128, **fields):
    a, b = contiguous(KIND, m, k), contiguous(KIND, k, 2 * n)
    b = dataclasses.replace(b, cols=n)
    epilogue = Epilogue(SWIGLU, second=b, absmax=True)
    return dataclasses.replace(
        GemmProblem(m, n, k, (), a, b, None, contiguous(KIND, m, n), epilogue=epilogue), **fields
    )


@pytest.mark.parametrize("spec", [spec for spec in REGISTRY if spec.operation == "gemm"], ids=lambda spec: spec.name)
def test_kernels_know_them_or_refuse_them(spec):
    gated = problem()
    plain = dataclasses.replace(gated, epilogue=Epilogue(Expression(("acc",)), absmax=True))
    if spec.name == "hopper_gemm_w8a16":
        narrow = dtype_named("float8_e4m3fn")
        factors = {"a": contiguous(narrow, 256, 128), "b": contiguous(narrow, 192, 128).transposed()}
        gated, plain = (dataclasses.replace(one, **factors) for one in (gated, plain))
    if spec.name == "simt_gemm":
        single = dtype_named("float32")
        plain = dataclasses.replace(plain, a=contiguous(single, 256, 128), b=contiguous(single, 128, 192))
    for one, known, message in ((gated, spec.gated, "no gated epilogue"), (plain, spec.absmax, "no absolute maximum")):
        reasons = [spec.why_not(one, spec.archs[-1], config) for config in spec.configs]
        if not known:
            assert all(message in reason or "no epilogue" in reason for reason in reasons)
        elif spec.next_kernel is None:
            able = [config for config, reason in zip(spec.configs, reasons, strict=True) if reason is None]
            params = spec.launch(one, able[0]).params
            assert ("u" in {getattr(param, "operand", None) for param in params}) == (one is gated)
            assert "absmax" in {getattr(param, "operand", None) for param in params}
            clears = spec.launch(one, able[0]).clears_absmax
            assert dict(spec.signature(one, able[0]))["absmax"] == ("cleared" if clears else "yes")
            assert clears == (spec.name == "hopper_gemm")
            # Memory that is cleared in front is nothing that a kernel that starts early would wait for.
            assert clears or not spec.launch(one, able[0]).overlaps
        else:
            names = dict.fromkeys(("hopper_gemm_upcast", "gemm_upcast", "hopper_gemm_k_major"), "float8_e4m3fn")
            kind = dtype_named({**names, "simt_gemm_mn_major": "float32"}.get(spec.name, KIND.name))
            # What is transposed may lie anywhere, but the other operand may not.
            k = 128 if spec.name == "hopper_gemm_k_major" else 127
            odd = dataclasses.replace(one, k=k, a=contiguous(kind, 256, k), b=contiguous(kind, k, 192))
            if one is gated:
                odd = dataclasses.replace(odd, epilogue=dataclasses.replace(odd.epilogue, second=odd.b))
            if spec.name == "hopper_gemm_k_major":
                odd = dataclasses.replace(odd, precision=Precision.FLOAT8)
            assert spec.why_not(odd, spec.archs[-1], spec.default) is None
            *_, last = spec.next_kernel(odd, spec.default).chain()
            assert last.problem.epilogue.absmax


def test_both_factors_are_rounded_to_tf32():
    """TMA rounds float32 to TF32 where the tensor map says so; wgmma alone would truncate."""
    kind = dtype_named("float32")
    a, b = contiguous(kind, 256, 128), contiguous(kind, 192, 128).transposed()
    gated = problem(
        a=a, b=b, d=contiguous(kind, 256, 192), precision=Precision.TF32, epilogue=Epilogue(SWIGLU, second=b)
    )
    spec = next(one for one in REGISTRY if one.name == "hopper_gemm")
    config = next(one for one in spec.configs if spec.why_not(gated, spec.archs[0], one) is None)
    maps = {param.operand: param.tf32 for param in spec.launch(gated, config).params if hasattr(param, "tf32")}
    assert {name for name, rounds in maps.items() if rounds} == {"a", "b", "u"}


def test_what_is_chosen_for_gated_forms():
    hopper = REGISTRY[0].archs[0]
    choice = choose(problem(4096, 14336, 4096), hopper, multiprocessors=132)
    assert choice.spec.name == "hopper_gemm"
    assert choice.config.why_not_gated(KIND.itemsize, mn_major=True) is None
    turned = problem(d=contiguous(KIND, 192, 256).transposed())
    choice = choose(turned, hopper)
    assert (choice.spec.name, choice.form.name) == ("hopper_gemm", "gate")
    assert "give a row-major out" in choice.spec.why_not(turned, hopper, choice.config)


@pytest.mark.parametrize("out", ["bfloat16", "float32"])
def test_configs_that_take_gated_forms_have_the_shared_memory(out):
    hopper, spec = REGISTRY[0].archs[0], next(one for one in REGISTRY if one.name == "hopper_gemm")
    for order in (contiguous(KIND, 4096, 8192), contiguous(KIND, 8192, 4096).transposed()):
        b = dataclasses.replace(order, cols=4096)
        gated = problem(4096, 4096, 4096, b=b, d=contiguous(dtype_named(out), 4096, 4096))
        gated = dataclasses.replace(gated, epilogue=dataclasses.replace(gated.epilogue, second=b))
        taken = [one for one in spec.configs if spec.why_not(gated, hopper, one) is None]
        assert any(one.swap_ab for one in taken)
        assert all(spec.launch(gated, one).shared_bytes <= MAX_SHARED_BYTES for one in taken)


def test_two_factors_are_twice_the_work():
    assert problem().flop == 2 * problem(epilogue=None).flop
    a, b = np.ones((3, 4), np.float32), np.ones((4, 10), np.float32)
    assert gm.gemm.plan(a, b, epilogue="swiglu", executor="cpu").flop == 2 * 3 * 4 * 10


def test_layers_are_one_gated_product():
    x, w = np.ones((3, 16, 8), KIND.numpy()), np.ones((8, 48), KIND.numpy())
    plan = gm.gemm.plan(x, w, epilogue="swiglu", executor="vgpu", absmax=np.zeros(1, np.float32))
    assert (plan.problem.m, plan.problem.n, plan.problem.batch) == (48, 24, ())
    assert plan.problem.epilogue.second == dataclasses.replace(plan.problem.b, alignment=16)
    assert "epilogue: up * silu(gate); absmax" in str(plan).splitlines()
