"""gemmule.jax on arrays that are sharded over devices: each device multiplies its shards, and nothing is gathered."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax", reason="JAX is not installed")

BEGIN = """
import jax
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
    np.testing.assert_allclose(np.asarray(got), expected, atol=1e-5 * k, rtol=1e-5)
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
each = jax.jit(jax.shard_map(gj.matmul, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"), check_vma=False))
held(each(place(x, P("d")), place(w, P())), x @ w, 16)
db = jax.jit(jax.grad(lambda a, b: (each(a, b) ** 2).sum(), argnums=1))(place(x, P("d")), place(w, P()))
held(db, 2 * np.einsum("bmk,bmn->kn", x, x @ w), 800)
"""


def run(script, seed, mode, **environment):
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu", **environment}
    text = BEGIN.replace("SEED", str(seed)).replace("MODE", mode) + script
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
