"""gemmule.jax.ragged_dot on the CPU: jax.lax's meaning, gradients, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gemmule.core.errors import DTypeError, ShapeError

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import gemmule.jax as gj  # noqa: E402
from gemmule.jax import grouped  # noqa: E402

pytestmark = pytest.mark.usefixtures("jax_on_the_host")

SIZES = (2, 0, 1, 6)


def operands(rng, rows=9, dtype="float64"):
    lhs, rhs = (jnp.asarray(rng.standard_normal(shape)).astype(dtype) for shape in ((rows, 5), (4, 5, 3)))
    return lhs, rhs, jnp.array(SIZES, jnp.int32)


@pytest.mark.parametrize("rows", [9, 12])
@pytest.mark.parametrize("jit", [False, True])
def test_it_is_that_of_jax(rows, jit, rng):
    given = operands(rng, rows)
    got = (jax.jit(gj.ragged_dot) if jit else gj.ragged_dot)(*given)
    np.testing.assert_allclose(got, jax.lax.ragged_dot(*given), rtol=1e-12, atol=1e-12)
    assert (got[9:] == 0).all()


@pytest.mark.parametrize(("lhs", "rhs"), [((6, 0), (2, 0, 8)), ((0, 16), (2, 16, 8)), ((6, 16), (0, 16, 8))])
def test_what_adds_up_nothing_is_zero_and_asks_no_kernel(lhs, rhs):
    """Gradients too; kernels refuse such products."""
    given = jnp.ones(lhs), jnp.ones(rhs), jnp.zeros(rhs[:1], jnp.int32)

    def both(a, b):
        found, back = jax.vjp(lambda *x: gj.ragged_dot(*x, given[2]), a, b)
        return found, *back(found)

    assert [x.shape for x in both(*given[:2])] == [(lhs[0], rhs[2]), lhs, rhs]
    assert not any(x.any() for x in both(*given[:2]))
    assert "ffi_call" not in str(jax.make_jaxpr(both)(*given[:2]))


def by_parts(lhs, rhs, sizes):
    """JAX has no second derivative of its own product."""
    del sizes
    starts = np.cumsum((0, *SIZES))
    return jnp.concatenate([lhs[s:e] @ rhs[g] for g, (s, e) in enumerate(itertools.pairwise(starts))])


def test_gradients_and_theirs(rng):
    lhs, rhs, sizes = operands(rng)

    def loss(product, lhs, rhs):
        return (product(lhs, rhs, sizes) ** 3).sum()

    def slope(product, lhs, rhs):
        grads = jax.grad(lambda *given: loss(product, *given), (0, 1))(lhs, rhs)
        return sum((grad**2).sum() for grad in grads)

    for function in (loss, slope):
        mine, its = (
            jax.grad(lambda *given: function(product, *given), (0, 1))(lhs, rhs)  # noqa: B023
            for product in (gj.ragged_dot, by_parts)
        )
        for x, y in zip(mine, its, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10)


def test_vmap_runs_one_by_one(rng):
    lhs, rhs, sizes = operands(rng)
    got = jax.vmap(gj.ragged_dot, (0, None, None))(jnp.stack([lhs, 2 * lhs]), rhs, sizes)
    np.testing.assert_allclose(got[1], 2 * got[0], rtol=1e-12)


def test_what_does_not_fit(rng):
    lhs, rhs, sizes = operands(rng)
    with pytest.raises(ShapeError, match="must be"):
        gj.ragged_dot(lhs, rhs, sizes[:3])
    with pytest.raises(DTypeError, match="int32"):
        gj.ragged_dot(lhs, rhs, sizes.astype(jnp.int64))
    with pytest.raises(DTypeError, match="both of one type"):
        gj.ragged_dot(lhs, rhs.astype("float32"), sizes)
    with pytest.raises(Exception, match="must be at most 9"):
        gj.ragged_dot(lhs, rhs, 2 * sizes).block_until_ready()


@pytest.mark.parametrize(("depth", "columns"), [(8, 16), (8, 5), (3, 16), (3, 5)])
def test_16_bit_floats_have_lines_that_a_kernel_loads(depth, columns, monkeypatch):
    """Of every product, those of gradients too, contiguous dimensions are multiples of 16 bytes."""
    call, lines = grouped._call, []

    def seen(stored, shape, a, b, ends):
        lines.extend((a.shape[-1], b.shape[-1]))
        return call(stored, shape, a, b, ends)

    monkeypatch.setattr(grouped, "_call", seen)
    rng = np.random.default_rng()
    lhs, rhs = (jnp.asarray(rng.integers(-4, 5, x), jnp.bfloat16) for x in ((9, depth), (4, depth, columns)))
    sizes = jnp.array([2, 0, 1, 5], jnp.int32)
    weights = jnp.asarray(rng.integers(-4, 5, (9, columns)), jnp.bfloat16)
    wanted = jax.lax.ragged_dot(lhs.astype(float), rhs.astype(float), sizes)
    found, back = jax.vjp(lambda *x: gj.ragged_dot(*x, sizes), lhs, rhs)
    np.testing.assert_array_equal(found.astype(float), wanted)
    _, exact = jax.vjp(lambda *x: jax.lax.ragged_dot(*x, sizes), lhs.astype(float), rhs.astype(float))
    for mine, its in zip(back(weights), exact(weights.astype(float)), strict=True):
        np.testing.assert_array_equal(mine.astype(float), its.astype(jnp.bfloat16).astype(float))
    assert len(lines) == 6
    assert not any(count % 8 for count in lines)
