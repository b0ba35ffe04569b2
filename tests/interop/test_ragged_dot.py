"""gemmule.jax.ragged_dot on the CPU: jax.lax's meaning, gradients, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gemmule.core.errors import ArgumentError, DTypeError, ShapeError

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
    assert "gemmule" not in str(jax.make_jaxpr(both)(*given[:2]))


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


def held(rng, transform):
    """Hold a transform of the product against that of its parts."""
    lhs, rhs, sizes = operands(rng)
    mine, its = (jax.tree.leaves(transform(lambda a, b: f(a, b, sizes))(lhs, rhs)) for f in (gj.ragged_dot, by_parts))  # noqa: B023
    for x, y in zip(mine, its, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("of", [0, 1, (0, 1)], ids=str)
def test_forward_mode_and_reverse_mode_in_any_order(of, rng):
    """Forward over reverse too, as `jax.hessian` is."""

    def cubes(f):
        return lambda *x: (f(*x) ** 3).sum()

    def along(f):
        return lambda *x: jax.jvp(f, x, tuple(jnp.cos(y) for y in x))

    held(rng, along)
    held(rng, lambda f: along(jax.grad(cubes(f), of)))
    held(rng, lambda f: jax.grad(lambda *x: (along(f)(*x)[1] ** 2).sum(), of))
    held(rng, lambda f: along(along(jax.grad(cubes(f), of))))
    held(rng, lambda f: jax.jit(jax.hessian(cubes(f), of)))


def test_linear_transposes(rng):
    lhs, rhs, sizes = operands(rng)
    (got,) = jax.linear_transpose(lambda b: gj.ragged_dot(lhs, b, sizes), rhs)(jnp.ones((9, 3)))
    np.testing.assert_allclose(got, jax.grad(lambda b: by_parts(lhs, b, sizes).sum())(rhs), rtol=1e-12)
    with pytest.raises(ArgumentError, match="linear in both"):
        jax.linear_transpose(lambda a, b: gj.ragged_dot(a, b, sizes), lhs, rhs)(jnp.ones((9, 3)))


def test_vmap_runs_one_by_one(rng):
    lhs, rhs, sizes = operands(rng)
    got = jax.vmap(gj.ragged_dot, (0, None, None))(jnp.stack([lhs, 2 * lhs]), rhs, sizes)
    np.testing.assert_allclose(got[1], 2 * got[0], rtol=1e-12)
    several = jnp.stack([sizes, jnp.array([0, 4, 4, 1], jnp.int32)], 1)
    mapped = jax.vmap(gj.ragged_dot, (None, None, 1), 1)(lhs, rhs, several)
    for one in range(2):
        np.testing.assert_allclose(mapped[:, one], gj.ragged_dot(lhs, rhs, several[:, one]), rtol=1e-12)


def test_what_does_not_fit(rng):
    lhs, rhs, sizes = operands(rng)
    with pytest.raises(ShapeError, match="must be"):
        gj.ragged_dot(lhs, rhs, sizes[:3])
    with pytest.raises(DTypeError, match="group_sizes is float32; it must be int32 or int64"):
        gj.ragged_dot(lhs, rhs, sizes.astype(jnp.float32))
    with pytest.raises(DTypeError, match="both of one type"):
        gj.ragged_dot(lhs, rhs.astype("float32"), sizes)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        (
            [4, 0, 2, 12],
            r"add up to 18 at group_sizes\[3\] and 6 before it; none may be negative, and all together at most 9",
        ),
        ([2, 3, -1, 0], r"add up to 4 at group_sizes\[2\] and 5 before"),
        ([-1, 3, 0, 0], r"add up to -1 at group_sizes\[0\]"),
        ([0, 2**32 + 1, 0, 0], r"add up to 2147483647 at group_sizes\[1\]"),
        ([0, 0, 0, -(2**32)], r"add up to -2147483648 at group_sizes\[3\]"),
    ],
    ids=str,
)
def test_sizes_that_are_no_rows(sizes, text, rng):
    lhs, rhs, _ = operands(rng)
    given = jnp.array(sizes)
    assert given.dtype == jnp.int64
    for function in (gj.ragged_dot, jax.jit(gj.ragged_dot)):
        with pytest.raises(Exception, match=text):
            function(lhs, rhs, given).block_until_ready()


def test_sizes_of_int64(rng):
    lhs, rhs, sizes = operands(rng)
    wide = sizes.astype(jnp.int64)
    assert wide.dtype == jnp.int64
    np.testing.assert_array_equal(gj.ragged_dot(lhs, rhs, wide), gj.ragged_dot(lhs, rhs, sizes))


@pytest.mark.parametrize(("depth", "columns"), [(8, 16), (8, 5), (3, 16), (3, 5)])
def test_16_bit_floats_have_lines_that_a_kernel_loads(depth, columns, monkeypatch):
    """Of every product, those of gradients too, contiguous dimensions are multiples of 16 bytes."""
    call, lines = grouped._product, []

    def seen(stored, a, b, ends):
        lines.extend((a.shape[-1], b.shape[-1]))
        return call(stored, a, b, ends)

    monkeypatch.setattr(grouped, "_product", seen)
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
