"""gm.matmul, gm.gemm and transposes of JAX's arrays on a GPU: planned at the first call, then programs of XLA's."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import dtype_named
from gemmule.core.errors import ArgumentError, DTypeError, ShapeError
from gemmule.dispatch.choices.choice_cache import clear_choices
from support.oracle import assert_product, random_matrix

CALLS = 3


@pytest.fixture
def jnp(jax):
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    assert jax.devices()[0].platform == "gpu"
    yield jax.numpy
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def programs(jax, jnp):
    from gemmule.api.calls.jax_programs import programs_for

    found = programs_for(type(jnp.zeros(1)))
    assert found is not None
    found._programs.clear()
    found._seen.clear()
    return found


def compiled(programs):
    return sum(program.compiled is not None for program in programs._programs.values())


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "int32"]
)
@pytest.mark.parametrize(
    ("first", "second"), [((61, 35), (35, 50)), ((3, 61, 35), (35, 50)), ((2, 1, 5, 7), (3, 7, 4))]
)
def test_products(jax, programs, rng, dtype, first, second):
    for _ in range(CALLS):
        a, b = random_matrix(rng, dtype_named(dtype), first), random_matrix(rng, dtype_named(dtype), second)
        got = gm.matmul(jax.device_put(a), jax.device_put(b))
        assert isinstance(got, jax.Array)
        assert got.dtype.name == dtype
        assert {device.platform for device in got.devices()} == {"gpu"}
        # The next operation of JAX sees the finished result.
        assert_product(np.asarray(jax.numpy.swapaxes(got, -1, -2)).swapaxes(-1, -2), a, b)
    assert compiled(programs) == 1


def test_vectors_and_empty_products(jax, jnp, programs, rng):
    x, v = rng.standard_normal((40, 30)), rng.standard_normal(30)
    for _ in range(CALLS):
        np.testing.assert_allclose(gm.matmul(jnp.asarray(x), jnp.asarray(v)), x @ v, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(gm.matmul(jnp.asarray(v), jnp.asarray(x.T)), v @ x.T, rtol=1e-12, atol=1e-12)
        assert gm.matmul(jnp.asarray(v), jnp.asarray(v)).shape == ()
        assert gm.matmul(jnp.ones((0, 30)), jnp.asarray(v)).shape == (0,)
        np.testing.assert_array_equal(gm.matmul(jnp.ones((4, 0)), jnp.ones((0, 5))), np.zeros((4, 5)))


def test_gemm(jax, jnp, programs, rng):
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 33), (33, 90), (70, 90)))
    on_gpu = [jax.device_put(x) for x in (a, b, c)]
    for alpha, beta in ((0.5, -2.0), (1.0, 1.0), (3.0, 0.0)):
        for _ in range(CALLS):
            assert_product(np.asarray(gm.gemm(*on_gpu, alpha=alpha, beta=beta)), a, b, c, alpha, beta)
    assert compiled(programs) == 3
    for _ in range(CALLS):
        wide = gm.matmul(on_gpu[0].astype("bfloat16"), on_gpu[1].astype("bfloat16"), out_dtype="float32")
        assert wide.dtype == "float32"
        counts = gm.gemm(jnp.ones((5, 300), "int8"), jnp.ones((300, 5), "int8"))
        assert counts.dtype == "int32"
        assert int(counts[0, 0]) == 300


@pytest.mark.parametrize("gated", [None, "halves", "pairs"])
def test_epilogues(jax, jnp, programs, rng, gated):
    a, b, bias = (rng.standard_normal(shape).astype(np.float16) for shape in ((64, 48), (48, 80), (80,)))
    on_gpu = [jax.device_put(x) for x in (a, b, bias)]
    z = a.astype(np.float64) @ b + bias
    if gated is None:
        expected = np.maximum(z, 0)
        calls = [{"epilogue": "relu"}, {"epilogue": lambda acc: gm.epilogue.maximum(acc, 0)}]
    else:
        gate, up = (z[:, :40], z[:, 40:]) if gated == "halves" else (z[:, ::2], z[:, 1::2])
        expected = gate / (1 + np.exp(-gate)) * up
        calls = [{"epilogue": "swiglu", "gated": gated}]
    for call in calls:
        for _ in range(CALLS):
            got = gm.gemm(*on_gpu[:2], bias=on_gpu[2], **call)
            np.testing.assert_allclose(np.asarray(got).astype(np.float64), expected, rtol=5e-3, atol=5e-2)
    # A name and the function that it stands for are one.
    assert compiled(programs) == 1


def test_a_function_is_read_at_every_call(jax, programs, rng):
    a, b = (jax.device_put(rng.standard_normal((64, 64)).astype(np.float16)) for _ in range(2))
    plain = np.asarray(gm.matmul(a, b)).astype(np.float64)
    for scale in (1.0, 1.0, 2.0, 2.0, 1.0):
        got = gm.gemm(a, b, epilogue=lambda acc: acc * scale)  # noqa: B023
        np.testing.assert_allclose(np.asarray(got).astype(np.float64), plain * scale, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "complex128"])
def test_transposes(jax, jnp, programs, rng, dtype):
    for _ in range(CALLS):
        x = jnp.asarray(rng.integers(-100, 100, (3, 70, 45))).astype(dtype)
        host = np.asarray(x)
        np.testing.assert_array_equal(np.asarray(gm.transpose(x)), host.T)
        np.testing.assert_array_equal(np.asarray(gm.transpose(x, (1, 0, 2))), host.transpose(1, 0, 2))
        np.testing.assert_array_equal(np.asarray(gm.matrix_transpose(x)), host.swapaxes(-1, -2))
    assert compiled(programs) == 3


def test_work_is_done_in_order(jax, jnp, programs, rng):
    b = jax.device_put((rng.standard_normal((512, 512)) / 23).astype(np.float32))
    start = jax.device_put(rng.standard_normal((2000, 512)).astype(np.float32))

    def chained():
        x = start
        for number in range(40):
            x = gm.matmul(jnp.sin(x) * (1 + 0.01 * number), b) - x / 2
            x = gm.transpose(gm.transpose(x))
        return np.asarray(x)

    first = chained()
    assert np.isfinite(first).all()
    for _ in range(5):
        np.testing.assert_array_equal(chained(), first)


def test_refusals_stay_what_they_are(jax, jnp, programs):
    x = jnp.ones((4, 4), "float32")
    for _ in range(CALLS):
        gm.matmul(x, x)
        with pytest.raises(ArgumentError, match="read-only"):
            gm.matmul(x, x, out=jnp.zeros((4, 4), "float32"))
        with pytest.raises(ArgumentError, match=r"traced by JAX; .* of gemmule\.jax"):
            jax.jit(lambda y: gm.matmul(x, y))(x)
        with pytest.raises(ArgumentError, match=r"traced by JAX; .* of gemmule\.jax"):
            jax.grad(lambda y: gm.matmul(y, x).sum())(x)
        with pytest.raises(ShapeError):
            gm.matmul(x, jnp.ones((5, 4), "float32"))
        with pytest.raises(ArgumentError, match="comes from"):
            gm.matmul(x, np.ones((4, 4), np.float32))
        with pytest.raises(ArgumentError, match="executor='cpu'"):
            gm.matmul(x, x, executor="cpu")
    gone = jnp.ones((4, 4), "float32")
    gone.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        gm.matmul(gone, x)


def test_types_that_jax_does_not_have_now(jax, jnp, programs):
    x = jnp.ones((40, 40), "float64")
    for _ in range(CALLS):
        assert gm.matmul(x, x).dtype == "float64"
    jax.config.update("jax_enable_x64", False)
    with pytest.raises(DTypeError, match="jax_enable_x64"):
        gm.matmul(x, x)
    jax.config.update("jax_enable_x64", True)
    assert gm.matmul(x, x).dtype == "float64"


def test_constants_within_a_trace_are_computed_at_once(jax, jnp, programs):
    x = jnp.full((40, 40), 2.0, "float32")
    gm.matmul(x, x), gm.matmul(x, x)
    seen = []

    @jax.jit
    def traced(y):
        seen.append(gm.matmul(x, x))
        return y + seen[-1]

    np.testing.assert_array_equal(traced(x), np.full((40, 40), 162.0))
    assert not isinstance(seen[0], jax.core.Tracer)


def test_a_stream_of_the_callers(jax, programs, rng):
    """It goes through DLPack, in order with the arrays that were made before."""
    from gemmule.runtime.device import current
    from gemmule.runtime.driver import call, driver

    a, b = (rng.standard_normal((200, 200)).astype(np.float32) for _ in range(2))
    x, y = jax.device_put(a), jax.device_put(b)
    with current(0):
        stream = int(call("cuStreamCreate", driver().CUstream_flags.CU_STREAM_NON_BLOCKING))
    for _ in range(CALLS):
        got = gm.matmul(x + 0, y, stream=stream)
        with current(0):
            call("cuStreamSynchronize", stream)
        assert_product(np.asarray(got), a, b)
    assert not programs._programs
    assert not programs._seen


def test_another_layout(jax, jnp, programs, rng):
    layouts = pytest.importorskip("jax.experimental.layout")
    if not hasattr(layouts, "Format"):
        pytest.skip("this JAX has no Format")
    a, b = (rng.standard_normal((70, 70)).astype(np.float32) for _ in range(2))
    in_columns = layouts.Format(layouts.Layout((1, 0)), jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    x, y = jax.device_put(a, in_columns), jax.device_put(b)
    for first in (x, x, x, jax.device_put(a), jax.device_put(a), x, jax.device_put(a)):
        assert_product(np.asarray(gm.matmul(first, y)), a, b)
        np.testing.assert_array_equal(np.asarray(gm.transpose(first)), a.T)


def test_choices_that_are_forgotten(jax, jnp, programs, rng):
    a, b = (rng.standard_normal((90, 90)).astype(np.float32) for _ in range(2))
    x, y = jax.device_put(a), jax.device_put(b)
    for _ in range(CALLS):
        for _ in range(CALLS):
            assert_product(np.asarray(gm.matmul(x, y)), a, b)
        clear_choices()
    assert compiled(programs) == 1


def test_memory_of_others_that_is_less_aligned(jax, jnp, programs, cupy, rng):
    pool = cupy.asarray(rng.standard_normal(5000).astype(np.float32))
    for offset in (0, 4, 0, 64, 4, 8):
        taken = pool[offset : offset + 40 * 40].reshape(40, 40)
        x = jax.dlpack.from_dlpack(taken)
        host = cupy.asnumpy(taken)
        for _ in range(CALLS):
            assert_product(np.asarray(gm.matmul(x, x)), host, host)
            np.testing.assert_array_equal(np.asarray(gm.transpose(x)), host.T)
