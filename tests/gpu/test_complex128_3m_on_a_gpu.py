"""complex128 by three real products on the hardware: every config in all layouts, scalars, batches, conjugates."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import COMPLEX128, Precision
from gemmule.kernels.complex.complex128_3m.spec import SPEC
from gemmule.runtime.device import get_device
from support.gpu import kernel_products
from support.oracle import assert_product, poisoned, random_matrix

CONFIGS = [pytest.param(one, id=str(one).replace(" ", ",")) for one in SPEC.configs]
LAYOUTS = list(itertools.product(("row", "col"), repeat=3))
multiply = functools.partial(kernel_products.multiply, SPEC, precision=Precision.THREE_M)


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability < (9, 0):
        pytest.skip("needs compute capability 9.0 or newer")


@pytest.mark.parametrize("shape", [(1, 1, 1), (127, 129, 131), (384, 192, 96), (260, 132, 5), (65, 200, 0)], ids=str)
@pytest.mark.parametrize("config", CONFIGS)
def test_shapes_and_scalars(config, shape, rng):
    m, n, k = shape
    a, b, c = (random_matrix(rng, COMPLEX128, x) for x in ((m, k), (k, n), (m, n)))
    assert_product(multiply(a, b, poisoned(COMPLEX128, (m, n)), config=config), a, b, three_m=True)
    got = multiply(a, b, poisoned(COMPLEX128, (m, n)), c=c, alpha=0.5 - 2j, beta=1j, config=config)
    assert_product(got, a, b, c, 0.5 - 2j, 1j, three_m=True)


@pytest.mark.parametrize("kinds", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("config", CONFIGS)
def test_layouts_and_batches(config, kinds, rng):
    a, b = random_matrix(rng, COMPLEX128, (3, 67, 45)), random_matrix(rng, COMPLEX128, (3, 45, 135))
    got = multiply(a, b, poisoned(COMPLEX128, (3, 67, 135)), kinds=kinds, batch=(3,), config=config)
    assert_product(got, a, b, three_m=True)


def test_conjugates_of_tensors(rng):
    torch = pytest.importorskip("torch")
    a, b = random_matrix(rng, COMPLEX128, (1500, 333)), random_matrix(rng, COMPLEX128, (333, 1300))
    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    for left, right in itertools.product((False, True), repeat=2):
        given = x.conj() if left else x, y.conj() if right else y
        plan = gm.matmul.plan(*given, precision="3m")
        assert plan.kernel == SPEC.name
        got = gm.matmul(*given, precision="3m").cpu().numpy()
        assert_product(got, a.conj() if left else a, b.conj() if right else b, three_m=True)
    assert gm.matmul.plan(x, y).kernel != SPEC.name


def test_repeated_calls_give_the_same_bits(rng):
    a, b = (random_matrix(rng, COMPLEX128, (513, 513)) for _ in range(2))
    for one in SPEC.configs:
        first, second = (multiply(a, b, poisoned(COMPLEX128, (513, 513)), config=one) for _ in range(2))
        np.testing.assert_array_equal(first, second)
