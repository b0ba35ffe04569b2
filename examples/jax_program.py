"""gemmule inside a JAX program: jit, grad and vmap of a small network.

Needs JAX: ``pip install jax``.
"""

import jax
import jax.numpy as jnp

import gemmule.jax


def loss(parameters, x, target):
    """Return the mean squared error of a network of two layers."""
    w1, w2 = parameters
    hidden = jax.nn.gelu(gemmule.jax.matmul(x, w1))
    return jnp.mean((gemmule.jax.matmul(hidden, w2) - target) ** 2)


keys = jax.random.split(jax.random.key(0), 3)
parameters = (jax.random.normal(keys[0], (16, 64)) / 4, jax.random.normal(keys[1], (64, 1)) / 8)
x = jax.random.normal(keys[2], (128, 16))
target = jnp.sin(x.sum(axis=1, keepdims=True))

step = jax.jit(jax.value_and_grad(loss))
losses = []
for _ in range(300):
    value, gradients = step(parameters, x, target)
    parameters = tuple(one - 0.3 * gradient for one, gradient in zip(parameters, gradients, strict=True))
    losses.append(float(value))

assert losses[-1] < 0.7 * losses[0]
stacked = jax.vmap(gemmule.jax.matmul, (0, None))(jnp.stack([x, 2 * x]), parameters[0])
print(f"loss {losses[0]:.3f}, then {losses[-1]:.3f}; a batch of {stacked.shape}")
