"""gemmule.jax on the CPU: what it computes under JAX's transformations, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.core.errors import ArgumentError, DTypeError, ShapeError

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import gemmule as gm  # noqa: E402
import gemmule.jax as gj  # noqa: E402

pytestmark = pytest.mark.usefixtures("jax_on_the_host")

TOLERANCE = {"float64": 1e-13, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def arrays(rng, *shapes, dtype="float64"):
    return [jnp.asarray(rng.standard_normal(shape)).astype(dtype) for shape in shapes]


def assert_close(got, expected, dtype="float64"):
    assert got.shape == expected.shape
    assert got.dtype.name == dtype
    wide = [np.asarray(x).astype(np.float64) for x in (got, expected)]
    np.testing.assert_allclose(*wide, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 4)


def test_a_matrix_to_add_comes_with_beta():
    x = np.arange(4.0).reshape(2, 2)
    with pytest.raises(ArgumentError, match=r"give beta=1, or omit c"):
        gj.gemm(x, x, x)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("first", "second"),
    [((5, 7), (7, 4)), ((7,), (7, 4)), ((5, 7), (7,)), ((7,), (7,)), ((3, 5, 7), (7, 4)), ((2, 1, 5, 7), (3, 7, 4)),
     ((5, 7), (3, 7, 4)), ((0, 7), (7, 4)), ((5, 0), (0, 4)), ((2, 0, 7), (7, 4))],
    ids=str,
)  # fmt: skip
def test_matmul_in_jit_and_outside(rng, dtype, first, second):
    a, b = arrays(rng, first, second, dtype=dtype)
    expected = jnp.matmul(a.astype("float64"), b.astype("float64"))
    for got in (gj.matmul(a, b), jax.jit(gj.matmul)(a, b)):
        assert_close(got, expected, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(3, 5, 4), (5, 4), (4,), (5, 1), ()], ids=str)
def test_gemm(rng, dtype, shape):
    a, b, c = arrays(rng, (3, 5, 7), (7, 4), shape, dtype=dtype)
    got = jax.jit(lambda *x: gj.gemm(*x, alpha=-0.3, beta=0.5))(a, b, c)
    assert_close(got, -0.3 * (a.astype("float64") @ b.astype("float64")) + 0.5 * c.astype("float64"), dtype)
    nothing = gj.gemm(a, b, c * jnp.nan, beta=0)
    assert_close(nothing, a.astype("float64") @ b.astype("float64"), dtype)


def test_many_calls_from_one_program(rng):
    a, b = arrays(rng, (20, 20), (20, 20))

    @jax.jit
    def chained(x):
        return jax.lax.fori_loop(0, 50, lambda _, y: gj.matmul(y, b) / 5, x) + gj.matmul(x, x)

    expected = a
    for _ in range(50):
        expected = expected @ b / 5
    expected = expected + a @ a
    np.testing.assert_allclose(chained(a), expected, rtol=0, atol=1e-9 * float(jnp.abs(expected).max()))


CALLS = {
    "matmul": (gj.matmul, jnp.matmul, [(5, 7), (7, 4)]),
    "rows": (gj.matmul, jnp.matmul, [(2, 3, 5, 7), (7, 4)]),
    "batches": (gj.matmul, jnp.matmul, [(2, 1, 5, 7), (3, 7, 4)]),
    "b alone in the batch": (gj.matmul, jnp.matmul, [(5, 7), (3, 7, 4)]),
    "vectors": (gj.matmul, jnp.matmul, [(7,), (3, 7, 4)]),
    "gemm": (
        lambda a, b, c: gj.gemm(a, b, c, alpha=1.5, beta=-0.5),
        lambda a, b, c: 1.5 * (a @ b) - 0.5 * c,
        [(3, 5, 7), (7, 4), (5, 1)],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_gradients(rng, name):
    ours, theirs, shapes = CALLS[name]
    operands = arrays(rng, *shapes)
    every = tuple(range(len(operands)))
    weights = arrays(rng, theirs(*operands).shape)[0]

    def loss(function):
        return lambda *x: (weights * jnp.sin(function(*x))).sum()

    def second(function):
        first = jax.grad(loss(function), every)
        return jax.grad(lambda *x: sum(jnp.sin(part).sum() for part in first(*x)), every)

    for of in (lambda f: jax.grad(loss(f), every), second):
        for got, expected in zip(jax.jit(of(ours))(*operands), jax.jit(of(theirs))(*operands), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CALLS)
def test_linear_transposes(rng, name):
    """In each operand that the product is linear in, and in a factor and what is added together."""
    ours, theirs, shapes = CALLS[name]
    operands = arrays(rng, *shapes)
    cotangent = arrays(rng, theirs(*operands).shape)[0]
    for of in ((0,), (1,), (0, 2), (1, 2), (2,)):
        if max(of) >= len(operands):
            continue
        # Linear is the product without what is added, and what is added without the product.
        others = [x if place < 2 else 0 * x for place, x in enumerate(operands)]

        def transposed(function, of=of, others=others):
            def linear(*given):
                every = list(others)
                for place, x in zip(of, given, strict=True):
                    every[place] = x
                return function(*every) - (function(*others) if of == (2,) else 0)

            return jax.jit(jax.linear_transpose(linear, *(operands[place] for place in of)))(cotangent)

        for got, expected in zip(transposed(ours), transposed(theirs), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


def test_a_product_of_an_array_with_itself_has_no_transpose():
    with pytest.raises(ArgumentError, match="not linear in both operands"):
        jax.linear_transpose(lambda x: gj.matmul(x, x), jnp.ones((3, 3)))(jnp.ones((3, 3)))


@pytest.mark.parametrize("name", CALLS)
def test_forward_mode(rng, name):
    ours, theirs, shapes = CALLS[name]
    operands = arrays(rng, *shapes)
    every = tuple(range(len(operands)))

    def held(of):
        got, expected = of(ours), of(theirs)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)

    tangents = arrays(rng, *shapes)
    for one in every:
        # What has no tangent is no factor.
        held(
            lambda f, one=one: jax.jvp(
                lambda x: f(*operands[:one], x, *operands[one + 1 :]), [operands[one]], [tangents[one]]
            )
        )
    held(lambda f: jax.jit(lambda *x: jax.jvp(f, x, tuple(tangents)))(*operands))
    if name == "gemm":
        held(lambda f: jax.jit(jax.hessian(lambda *x: jnp.sin(f(*x)).sum(), every))(*operands))
    held(lambda f: jax.vmap(lambda t: jax.jvp(lambda x: f(x, *operands[1:]), operands[:1], [t])[1])(tangents[0][None]))


def test_without_jit(rng):
    a, b = arrays(rng, (3, 4), (4, 5))
    with jax.disable_jit():
        np.testing.assert_allclose(gj.matmul(a, b), a @ b, rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            jax.grad(lambda x: gj.matmul(x, b).sum())(a), jnp.ones((3, 5)) @ b.T, rtol=0, atol=1e-12
        )


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (None, "a is of type NoneType, not an array .*; pass an array of floats$"),
        ([[1.0], [2.0, 3.0]], "a is of type list, not an array .*inhomogeneous"),
        (np.ma.masked_array(np.ones((3, 4)), True), r"a is of type MaskedArray, .*filled\(\)"),
        (np.ones((3, 4), object), r"^a is an array of objects, not of numbers; .*astype\('float32'\)$"),
        (jax.ShapeDtypeStruct((3, 4), "float32"), "ShapeDtypeStruct, not an array .*; jax.eval_shape takes shapes"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_is_no_array(x, text, rng):
    with pytest.raises(ArgumentError, match=text) as raised:
        gj.matmul(x, *arrays(rng, (4, 5)))
    assert "\n" not in str(raised.value)


def test_random_keys_are_no_numbers(rng):
    key, (a,) = jax.random.key(0), arrays(rng, (4, 4))
    for name, call in {
        "a": lambda: gm.matmul(key, a),
        "b": lambda: gm.matmul(a, key),
        "c": lambda: gj.gemm(a, a, key, beta=1.0),
        "lhs": lambda: gj.ragged_dot(key, a, a),
    }.items():
        with pytest.raises(ArgumentError, match=f"^{name} is an array of random keys"):
            call()


def test_scalars_without_dimensions(rng):
    a, b = arrays(rng, (3, 4), (4, 5))
    for two in (jnp.asarray(2), jnp.asarray(2.0), np.array(2)):
        np.testing.assert_allclose(gj.gemm(a, b, alpha=two), 2 * (a @ b), rtol=0, atol=1e-12)
    with pytest.raises(ArgumentError, match=r"alpha cannot be read as a number .*traced.*scale an operand"):
        jax.jit(lambda x: gj.gemm(a, b, alpha=x))(2.0)


@pytest.mark.parametrize(
    ("shapes", "axes"),
    [
        ([(3, 6, 5), (5, 2)], (1, None)),
        ([(6, 5), (5, 2, 4)], (None, 2)),
        ([(4, 6, 5), (3, 5, 2, 4)], (0, 3)),
        ([(3, 6, 5), (4, 3, 5, 2)], (None, 0)),
        ([(6, 5), (5, 2), (4, 6, 2)], (None, None, 0)),
        ([(4, 6, 5), (5, 2), (2,)], (0, None, None)),
    ],
)
def test_vmap(rng, shapes, axes):
    operands = arrays(rng, *shapes)
    ours = (lambda a, b, *c: gj.gemm(a, b, *c, beta=2.0)) if len(shapes) == 3 else gj.matmul
    theirs = (lambda a, b, c: a @ b + 2 * c) if len(shapes) == 3 else jnp.matmul
    np.testing.assert_allclose(jax.jit(jax.vmap(ours, axes))(*operands), jax.vmap(theirs, axes)(*operands), atol=1e-12)


def test_vmap_twice_and_gradients_of_each_sample(rng):
    x, w = arrays(rng, (4, 3, 6, 5), (3, 5, 2))
    twice = jax.vmap(jax.vmap(gj.matmul), (0, None))(x, w)
    np.testing.assert_allclose(twice, x @ w, atol=1e-12)

    def of_each(product):
        return jax.vmap(jax.grad(lambda w, one: (product(one, w) ** 2).sum()), (None, 0))(w, x)

    np.testing.assert_allclose(of_each(gj.matmul), of_each(jnp.matmul), atol=1e-10)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: gj.matmul(x, x[:2]), ShapeError, "3 columns.*2 rows"),
        (lambda x: gj.matmul(x, x[0, 0]), ShapeError, "shape ()"),
        (lambda x: gj.matmul(x, x.astype("float32")), DTypeError, "a is float64 and b is float32.*gemmule.matmul"),
        (lambda x: gj.matmul(x.astype("int8"), x.astype("int8")), DTypeError, "int8.*gemmule.matmul"),
        (lambda x: gj.matmul(x, x, precision="tf16"), ArgumentError, "tf16"),
        (lambda x: gj.matmul(x, x, precision="tf32"), DTypeError, "not float64"),
        (lambda x: gj.gemm(x, x, beta=1.0), ShapeError, "beta=1.0"),
        (lambda x: gj.gemm(x, x, jnp.ones((2, 3)), beta=1.0), ShapeError, r"c has shape \(2, 3\)"),
        (lambda x: gj.gemm(x, x, alpha="2"), ArgumentError, "alpha is of type str"),
    ],
)
def test_refusals(call, error, says):
    x = jnp.ones((3, 3))
    with pytest.raises(error, match=says):
        call(x)
    with pytest.raises(error, match=says):
        jax.jit(call)(x)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_products_have_derivatives(dtype, rng):
    a, b, c = (
        x.astype(dtype) + 1j * y.astype(dtype)
        for x, y in (arrays(rng, shape, shape) for shape in ((2, 4, 3), (3, 5), (2, 4, 5)))
    )

    def loss(multiply):
        return lambda x, y: jnp.sum(jnp.abs(multiply(x, y) + c) ** 2)

    got, expected = (jax.jit(jax.grad(loss(one), (0, 1)))(a, b) for one in (gj.matmul, jnp.matmul))
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-3 if dtype == "complex64" else 1e-11)
    assert gj.gemm(a, b, c, beta=2.0).dtype == dtype
