"""gemmule.jax on a GPU: results, derivatives and the order of work within programs that XLA compiles."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.core.dtype import dtype_named
from support.oracle import assert_product, random_matrix

DTYPES = ["float64", "float32", "float16", "bfloat16"]


@pytest.fixture
def jnp(jax):
    import jax.numpy as jnp

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    assert jax.devices()[0].platform == "gpu"
    yield jnp
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def gj(jnp):
    import gemmule.jax

    return gemmule.jax


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(256, 512, 384), (77, 130, 61), (1, 40, 33)])
def test_in_jit_and_outside(jax, gj, rng, dtype, m, n, k):
    a, b, c = (random_matrix(rng, dtype_named(dtype), shape) for shape in ((m, k), (k, n), (m, n)))
    on_device = [jax.device_put(x) for x in (a, b, c)]
    for function in (gj.matmul, jax.jit(gj.matmul)):
        got = function(*on_device[:2])
        assert {device.platform for device in got.devices()} == {"gpu"}
        assert_product(np.asarray(got), a, b)
    got = jax.jit(lambda *x: gj.gemm(*x, alpha=0.5, beta=-2.0))(*on_device)
    assert_product(np.asarray(got), a, b, c, 0.5, -2.0)


@pytest.mark.parametrize(
    ("first", "second"), [((3, 40, 64), (64, 48)), ((2, 1, 5, 7), (3, 7, 4)), ((5, 7), (3, 7, 4)), ((0, 7), (7, 4))]
)
def test_batches(jax, gj, rng, first, second):
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in (first, second))
    got = np.asarray(jax.jit(gj.matmul)(a, b))
    np.testing.assert_allclose(got, a.astype(np.float64) @ b.astype(np.float64), atol=1e-4)


def test_tf32_is_taken_where_it_is_asked_for(jax, gj, rng):
    a, b = (rng.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    ieee, tf32 = (np.abs(jax.jit(lambda x, y, p=p: gj.matmul(x, y, precision=p))(a, b) - exact).max()
                  for p in ("ieee", "tf32"))  # fmt: skip
    assert ieee < 1e-4 < tf32 < 0.2


def test_work_is_done_in_order(jax, jnp, gj, rng):
    """Each product reads what XLA computed before it, and is read by what comes after."""
    b = jax.device_put((rng.standard_normal((512, 512)) / 25).astype(np.float32))

    def chained(product):
        def step(x, scale):
            x = product(x * scale, b)
            return x - x.mean(0), x.sum()

        return jax.jit(lambda x: jax.lax.scan(step, x, jnp.linspace(0.5, 1.5, 40, dtype=jnp.float32)))

    x = jax.device_put(rng.standard_normal((2000, 512)).astype(np.float32))
    expected, _ = chained(lambda p, q: jnp.matmul(p, q, precision="highest"))(x)
    first = chained(gj.matmul)(x)
    np.testing.assert_allclose(first[0], expected, rtol=1e-3, atol=1e-3 * float(jnp.abs(expected).max()))
    for _ in range(20):
        again = chained(gj.matmul)(x)
        np.testing.assert_array_equal(again[0], first[0])
        np.testing.assert_array_equal(again[1], first[1])


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_gradients(jax, jnp, gj, rng, dtype):
    x, w, c = (jnp.asarray(rng.standard_normal(shape)).astype(dtype) for shape in ((3, 40, 64), (64, 48), (48,)))

    def loss(function):
        return lambda *operands: jnp.sin(function(*operands).astype("float64")).sum()

    def plain(a, b, c):
        return (a.astype("float64") @ b.astype("float64")) * 0.5 + c.astype("float64")

    got = jax.jit(jax.grad(loss(lambda a, b, c: gj.gemm(a, b, c, alpha=0.5, beta=1.0)), (0, 1, 2)))(x, w, c)
    expected = jax.grad(loss(plain), (0, 1, 2))(x, w, c)
    for one, other in zip(got, expected, strict=True):
        assert one.dtype.name == dtype
        one, other = (np.asarray(t).astype(np.float64) for t in (one, other))
        np.testing.assert_allclose(one, other, atol=(1e-10 if dtype == "float64" else 0.05) * np.abs(other).max())


def test_vmap(jax, jnp, gj, rng):
    x, w = (jnp.asarray(rng.standard_normal(shape)) for shape in ((4, 3, 40, 16), (3, 16, 24)))
    np.testing.assert_allclose(jax.jit(jax.vmap(gj.matmul, (0, None)))(x, w), x @ w, atol=1e-10)
    np.testing.assert_allclose(jax.vmap(jax.vmap(gj.matmul), (0, None))(x, w), x @ w, atol=1e-10)


def test_what_goes_wrong_in_a_handler_reaches_the_caller(jax, jnp, gj, monkeypatch):
    from gemmule.jax import launches

    def fail(*_, **__):
        raise RuntimeError("no product today")

    with monkeypatch.context() as patched:
        patched.setattr(launches, "choose_compiling", fail)
        with pytest.raises(Exception, match="RuntimeError: no product today"):
            jax.block_until_ready(jax.jit(gj.matmul)(jnp.ones((37, 39)), jnp.ones((39, 35))))
    assert float(gj.matmul(jnp.ones((37, 39)), jnp.ones((39, 35)))[0, 0]) == 39


def test_linear_transposes_and_forward_mode(jax, jnp, gj, rng):
    a, b, c, cotangent = (
        jnp.asarray(rng.standard_normal(shape)) for shape in ((3, 40, 56), (56, 48), (48,), (3, 40, 48))
    )

    def ours(a, b, c):
        return gj.gemm(a, b, c, alpha=1.5, beta=-0.5)

    def theirs(a, b, c):
        return 1.5 * jnp.matmul(a, b, precision="highest") - 0.5 * c

    transposed = [jax.linear_transpose(lambda x, z, f=f: f(x, b, z), a, c)(cotangent) for f in (ours, theirs)]
    tangents = [jax.jit(lambda *x, f=f: jax.jvp(f, x, x))(a, b, c) for f in (ours, theirs)]
    mapped = [jax.vmap(lambda t, f=f: jax.jvp(lambda x: f(a, x, c), (b,), (t,))[1])(b[None]) for f in (ours, theirs)]
    for got, expected in (transposed, tangents, mapped):
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


def test_groups_that_add_up_nothing_are_zero(jax, gj, jnp):
    sizes = jnp.array([1, 3], jnp.int32)
    given = jnp.ones((4, 0), jnp.bfloat16), jnp.ones((2, 0, 8), jnp.bfloat16)
    for function in (gj.ragged_dot, jax.jit(gj.ragged_dot)):
        got = function(*given, sizes)
        assert got.shape == (4, 8)
        assert not got.any()
