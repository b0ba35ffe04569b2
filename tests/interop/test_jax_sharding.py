"""gemmule.jax on arrays that are sharded over devices: each device multiplies its shards, and nothing is gathered."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax", reason="JAX is not installed")

BEGIN = """
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gemmule
import gemmule.jax as gj

rng = np.random.default_rng(SEED)
mesh = jax.make_mesh((2, 2), ("d", "t"), axis_types=(AxisType.MODE,) * 2)


def place(x, spec):
    return jax.device_put(x, NamedSharding(mesh, spec))


def program(f, *arrays):
    compiled = jax.jit(f).lower(*arrays).compile()
    return compiled(*arrays), compiled.as_text()


def held(got, expected, k):
    # All devices finish: XLA's threads that want Python's lock as Python ends never do, and the process waits for them.
    np.testing.assert_allclose(np.asarray(jax.block_until_ready(got)), expected, atol=1e-5 * k, rtol=1e-5)
"""

FORWARD = """
x, w, v = (rng.standard_normal(s, dtype=np.float32) for s in ((8, 6, 16), (16, 12), (8, 16, 12)))
c = rng.standard_normal((12,), dtype=np.float32)
# Operands' shardings, the result's, and what is summed over devices.
cases = [
    (x, w, P("d"), P(), P("d"), 0),
    (x, w, P("d"), P(None, "t"), P("d", None, "t"), 0),
    (x, w, P(("d", "t")), P(), P(("d", "t")), 0),
    (x, w, P(None, "t"), P(None, "d"), P(None, "t", "d"), 0),
    (x, w, P(None, None, "t"), P("t"), P(), 1),
    (x, w, P("d", None, "t"), P("t"), P("d"), 1),
    (x, v, P("d", "t"), P("d"), P("d", "t"), 0),
    (x[0], w, P(None, ("d", "t")), P(("d", "t")), P(), 1),
    (x[:1], v, P(), P("d", None, "t"), P("d", None, "t"), 0),
]
for a, b, first, second, result, sums in cases:
    for added in (False, True):
        f = (lambda a, b: gj.gemm(a, b, c, alpha=2.0, beta=0.5)) if added else gj.matmul
        got, text = program(f, place(a, first), place(b, second))
        held(got, 2 * (a @ b) + 0.5 * c if added else a @ b, 16)
        assert got.sharding.is_equivalent_to(NamedSharding(mesh, result), got.ndim), (first, second, got.sharding)
        assert "all-gather(" not in text and text.count("all-reduce(") == sums, (first, second, text)
        assert gj.matmul(place(a, first), place(b, second)).sharding == got.sharding
# Weights that are sharded like the rows are gathered, as for data in parallel with sharded parameters.
got, text = program(gj.matmul, place(x, P("d")), place(w, P("d")))
held(got, x @ w, 16)
assert text.count("all-gather(") == 1 and "f32[4,6,12]" in text
# A device computes the part of the result that it shall have, of what it then reads of all K, and sums nothing.
given = place(x[:, 0], P("d", "t")), place(w, P())
rows = jax.jit(gj.matmul, out_shardings=NamedSharding(mesh, P(("d", "t")))).lower(*given)
# (Explicit axes give the product a type, which may be met first.)
assert "MODE" == "Explicit" or "all-reduce(" not in rows.compile().as_text()
held(rows.compile()(*given), x[:, 0] @ w, 16)
# Shardy hears that the result has sums over K.
assert re.search(r"sdy.op_sharding_rule<\\(\\[\\w+, (\\w+)\\].* reduction=\\{\\1\\}", rows.as_text()), rows.as_text()
# Operands whose result is asked for whole.
got = jax.jit(gj.matmul, out_shardings=NamedSharding(mesh, P()))(place(x, P("d")), place(w, P(None, "t")))
held(got, x @ w, 16)
# Nothing to sum, and extents that no mesh divides.
empty = gj.matmul(place(x[..., :0], P("d")), place(w[:0], P()))
held(empty, np.zeros((8, 6, 12)), 1)
if "MODE" == "Auto":
    # JAX refuses such slices of arrays whose types name their shardings.
    odd = jax.jit(lambda a, b: gj.matmul(a[:, :5, :7], b[:7, :9]))(place(x, P("d", None, "t")), place(w, P("t")))
    held(odd, x[:, :5, :7] @ w[:7, :9], 16)
z = (x + 1j * x[::-1]).astype(np.complex64)
held(jax.jit(gj.matmul)(place(z, P("d", None, "t")), place(w.astype(np.complex64), P("t"))), z @ w, 32)
try:
    gemmule.matmul(place(x, P("d")), place(w, P()))
except gemmule.ArgumentError as error:
    assert "a is on 4 devices; use gemmule.jax" in str(error)
else:
    raise AssertionError
"""

BACKWARD = """
x, w = rng.standard_normal((8, 6, 16), dtype=np.float32), rng.standard_normal((16, 12), dtype=np.float32)


def loss(a, b):
    return (gj.matmul(a, b) ** 2).sum()


for first, second in ((P("d"), P()), (P("d"), P(None, "t")), (P("d", None, "t"), P("t"))):
    (da, db), text = program(jax.grad(loss, argnums=(0, 1)), place(x, first), place(w, second))
    held(da, 2 * (x @ w) @ w.T, 200)
    held(db, 2 * np.einsum("bmk,bmn->kn", x, x @ w), 800)
    assert "all-gather(" not in text, (first, second)
# Under vmap, and each shard by itself.
many = jax.jit(jax.vmap(gj.matmul, in_axes=(0, None)))(place(x, P("d")), place(w, P(None, "t")))
held(many, x @ w, 16)
"""

SHARD_MAP = """
x, w = rng.standard_normal((8, 6, 16), dtype=np.float32), rng.standard_normal((16, 12), dtype=np.float32)
c, sizes = rng.standard_normal((8, 6, 12), dtype=np.float32), np.array([3, 2], np.int32)
v = rng.standard_normal((2, 16, 12), dtype=np.float32)


def mapped(f, given, result, **options):
    return jax.shard_map(f, mesh=mesh, in_specs=given, out_specs=result, **options)


def part(a, b):
    return jax.lax.psum(gj.matmul(a, b), "t")


da, db = 2 * (x @ w) @ w.T, 2 * np.einsum("bmk,bmn->kn", x, x @ w)
for options in ({}, {"check_vma": False}):
    for f, first, second in ((gj.matmul, P("d"), P()), (part, P("d", None, "t"), P("t"))):
        each = mapped(f, (first, second), P("d"), **options)
        given = place(x, first), place(w, second)
        held(jax.jit(each)(*given), x @ w, 16)
        got = jax.jit(jax.grad(lambda a, b: (each(a, b) ** 2).sum(), (0, 1)))(*given)
        held(got[0], da, 200)
        held(got[1], db, 800)
given = place(x, P("d")), place(w, P()), place(c, P("d"))
# The gradient of what each device has whole is summed over devices, within the map too.
inside = mapped(jax.grad(lambda a, b: (gj.matmul(a, b) ** 2).sum(), 1), (P("d"), P()), P())
held(jax.jit(inside)(*given[:2]), db, 800)
# Where only the operands are sharded, or only C: what all devices have has the sum of their gradients.
for first, third in ((P("d"), P()), (P(), P("d"))):
    each = mapped(lambda a, b, c: gj.gemm(a, b, c, alpha=2.0, beta=0.5), (first, P(), third), P("d"))
    y, few = (x, c[:4]) if third == P() else (x[:4], c)
    total = 2 * np.resize(y, x.shape) @ w + 0.5 * np.resize(few, c.shape)
    loss = jax.grad(lambda *given: (each(*given) ** 2).sum(), (0, 2))
    got = jax.jit(loss)(place(y, first), given[1], place(few, third))
    for one, whole in zip(got, (4 * total @ w.T, total), strict=True):
        held(one, whole if len(one) == 8 else whole[:4] + whole[4:], 800)
forward = mapped(lambda a, b: jax.jvp(gj.matmul, (a, b), (a, jnp.zeros_like(b)))[1], (P("d"), P()), P("d"))
held(jax.jit(forward)(*given[:2]), x @ w, 16)
# A result that varies over devices is none that all have.
try:
    jax.jit(mapped(gj.matmul, (P("d"), P()), P()))(*given[:2])
except ValueError as error:
    assert "out_specs" in str(error), error
else:
    raise AssertionError
groups = mapped(gj.ragged_dot, (P("d"), P(), P()), P("d"))
rows = place(np.concatenate([x[0], -2 * x[1]]), P("d"))
got = jax.jit(jax.grad(lambda a, b, n: groups(a, b, n).sum(), 1))(rows, place(v, P()), place(sizes, P()))
sums = [(x[0, part] - 2 * x[1, part]).sum(0) for part in (slice(0, 3), slice(3, 5))]
held(got, np.stack(sums)[..., None] * np.ones((2, 16, 12), "f4"), 16)
exported = jax.export.export(jax.jit(mapped(gj.matmul, (P("d"), P()), P("d"))), disabled_checks=CALLS)(*given[:2])
assert exported.nr_devices == 4
held(jax.jit(exported.call)(*given[:2]), x @ w, 16)
""".replace("CALLS", '[jax.export.DisabledSafetyCheck.custom_call("gemmule_gemm")]')

#: Gradients where arrays' types name their shardings: each is sharded as its operand.
TYPED = """
x, w = rng.standard_normal((8, 6, 16), dtype=np.float32), rng.standard_normal((16, 12), dtype=np.float32)
c = rng.standard_normal((8, 6, 12), dtype=np.float32)


def product(a, b, c):
    return gj.gemm(a, b, c, alpha=2.0, beta=0.5)


y = 2 * (x @ w) + 0.5 * c
expected = 4 * y @ w.T, 4 * np.einsum("bmk,bmn->kn", x, y), y
with jax.set_mesh(mesh):
    for first, second, third in (
        (P("d"), P(), P("d")),
        (P("d"), P(), P()),
        (P(), P(), P("d", "t")),
        (P("d"), P(None, "t"), P(None, None, "t")),
        (P(None, "t"), P(None, "t"), P("d")),
        (P("d", "t"), P(), P("t", "d")),
        (P("d", None, "t"), P("t"), P("d")),
        (P("d"), P("d"), P()),
    ):
        given = place(x, first), place(w, second), place(c, third)
        for once in (jax.jit, lambda f: f):
            held(once(product)(*given), y, 32)
            for want in ((0, 1, 2), (2,), (0, 2)):
                found = once(jax.grad(lambda *given: (product(*given) ** 2).sum(), want))(*given)
                for number, got in zip(want, found, strict=True):
                    held(got, expected[number], 800)
                    assert got.sharding.is_equivalent_to(given[number].sharding, got.ndim), (first, second, third)
        out, tangent = jax.jit(lambda *given: jax.jvp(product, given, given))(*given)
        held(tangent, 4 * (x @ w) + 0.5 * c, 64)
        assert tangent.sharding.is_equivalent_to(out.sharding, out.ndim)
        # Only C varies.
        _, tangent = jax.jit(lambda a, b, c: jax.jvp(lambda c: product(a, b, c), (c,), (c,)))(*given)
        held(tangent, 0.5 * c, 16)
    assert jax.typeof(gj.matmul(place(x, P("d")), place(w, P(None, "t")))).sharding.spec == P("d", None, "t")
    rows, sizes, v = place(x[0], P()), place(np.array([4, 2], np.int32), P()), place(np.stack([w, -w]), P("d"))
    found = jax.jit(jax.grad(lambda a, b: gj.ragged_dot(a, b, sizes).sum(), (0, 1)))(place(x[:, 0], P("d")), v)
    held(found[0], np.repeat([w.sum(1), -w.sum(1), 0 * w.sum(1)], (4, 2, 2), 0), 16)
"""


def run(script, seed, mode, **environment):
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu", **environment}
    text = (BEGIN + script).replace("SEED", str(seed)).replace("MODE", mode)
    done = subprocess.run(
        [sys.executable, "-c", text], env=os.environ | flags, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def seed(rng):
    return int(rng.integers(1 << 30))


@pytest.mark.parametrize("mode", ["Auto", "Explicit"])
def test_products_stay_sharded(seed, mode):
    run(FORWARD, seed, mode)


@pytest.mark.parametrize("mode", ["Auto", "Explicit"])
def test_gradients_stay_sharded(seed, mode):
    run(BACKWARD, seed, mode)


@pytest.mark.parametrize("mode", ["Auto", "Explicit"])
def test_gradients_in_shard_map(seed, mode):
    run(SHARD_MAP, seed, mode)


def test_gradients_have_the_types_of_operands(seed):
    run(TYPED, seed, "Explicit")


def test_a_k_that_devices_do_not_divide(seed):
    """What pads a part of K is not multiplied."""
    script = """
x, w = np.arange(768.0, dtype="f4").reshape(8, 6, 16) % 7, np.arange(192.0, dtype="f4").reshape(16, 12) % 5
on = jax.lax.with_sharding_constraint
halves = NamedSharding(mesh, P(None, None, "t")), NamedSharding(mesh, P("t"))
f = jax.jit(lambda a, b: gj.matmul(on(a[..., :7], halves[0]), on(b[:7], halves[1])))
held(f(place(x, P("d")), place(w, P("t"))), x[..., :7] @ w[:7], 16)
"""
    run(script, seed, "Auto")


def test_another_partitioner_gathers(seed):
    """GSPMD, which is deprecated, knows no rule of these products."""
    script = 'x = jnp.ones((4, 4))\nheld(jax.jit(gj.matmul)(place(x, P("d")), x), np.full((4, 4), 4.0), 4)'
    run(script, seed, "Auto", JAX_USE_SHARDY_PARTITIONER="0")
