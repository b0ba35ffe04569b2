"""Arrays on a second GPU of one process: models spread over GPUs, threads with a GPU each, sharded arrays."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import dtype_named
from gemmule.runtime.device import device_count
from support.gpu.torch_arrays import to_numpy, to_torch
from support.oracle import assert_product, random_matrix

#: Types, precisions and shapes that reach kernels with workspaces, tensor maps, clusters and packed operands.
PRODUCTS = [
    ("bfloat16", None, (512, 512, 512)), ("bfloat16", None, (129, 1635, 2143)), ("bfloat16", None, (1, 4096, 4096)),
    ("bfloat16", None, (64, 1024, 8192)), ("float16", None, (301, 77, 1001)), ("float32", None, (256, 256, 4096)),
    ("float32", None, (255, 127, 511)), ("float32", "tf32", (1024, 512, 768)), ("float32", "tf32", (333, 511, 257)),
    ("float64", None, (384, 512, 640)), ("float64", None, (111, 77, 301)), ("float64", "ozaki", (1024, 1024, 1024)),
    ("complex64", None, (128, 130, 140)), ("int8", None, (256, 384, 512)), ("float32", "bf16x6", (512, 512, 512)),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _two():
    if device_count() < 2:
        pytest.skip("needs two NVIDIA GPUs")


@pytest.fixture
def torch(torch):
    torch.cuda.set_device(0)
    yield torch
    assert torch.cuda.current_device() == 0


def matrices(rng, dtype, m, n, k):
    kind = dtype_named(dtype)
    return random_matrix(rng, kind, (m, k)), random_matrix(rng, kind, (k, n))


@pytest.mark.parametrize(("dtype", "precision", "shape"), PRODUCTS, ids=str)
def test_products_on_each_gpu_by_turns(torch, rng, dtype, precision, shape):
    """The current GPU is the first one all the time, and each call computes where its operands lie."""
    a, b = matrices(rng, dtype, *shape)
    options = {} if precision is None else {"precision": precision}
    if dtype == "int8":
        options["out_dtype"] = "int32"
    tensors = [[to_torch(torch, x).to(f"cuda:{number}") for x in (a, b)] for number in range(2)]
    results = []
    for number in (1, 0, 1, 0, 1):
        got = gm.matmul(*tensors[number], **options)
        assert got.device.index == number
        results.append(to_numpy(torch, got))
    assert all(np.array_equal(result, results[0], equal_nan=True) for result in results)
    if precision in (None, "ozaki"):
        assert_product(results[0], a, b)
    else:
        np.testing.assert_allclose(results[0], a.astype(float) @ b.astype(float), atol=0.05 * shape[2] ** 0.5)


def test_operands_on_two_gpus_are_refused(torch, rng):
    a, b = (to_torch(torch, x) for x in matrices(rng, "float32", 64, 64, 64))
    for first, second in ((a, b.to("cuda:1")), (a.to("cuda:1"), b)):
        with pytest.raises(gm.ArgumentError, match="GPU"):
            gm.matmul(first, second)
    with pytest.raises(gm.ArgumentError, match="GPU"):
        gm.matmul(a, b, out=torch.empty(64, 64, device="cuda:1"))


def test_threads_with_a_gpu_each(torch, rng):
    work = [matrices(rng, "bfloat16", *shape) for shape in ((256, 320, 512), (129, 131, 515))]
    tensors = {
        number: [[to_torch(torch, x).to(f"cuda:{number}") for x in pair] for pair in work] for number in range(2)
    }
    failures = []

    def repeat(number):
        torch.cuda.set_device(number)
        first = [gm.matmul(*pair) for pair in tensors[number]]
        for _ in range(200):
            for pair, expected in zip(tensors[number], first, strict=True):
                if not torch.equal(gm.matmul(*pair), expected):
                    failures.append(number)
        for got, pair in zip(first, work, strict=True):
            assert_product(to_numpy(torch, got), *pair)

    raised = []

    def guarded(number):
        try:
            repeat(number)
        except AssertionError as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not raised


def test_a_model_over_two_gpus_and_its_gradients(torch, gt):
    """As `device_map` spreads layers: the first ones on one GPU, the others on the next."""
    torch.manual_seed(5)
    layers = torch.nn.ModuleList(
        [torch.nn.Linear(160, 223), torch.nn.Linear(223, 160), torch.nn.Linear(160, 64)]
    ).bfloat16()
    homes = (0, 1, 1)
    for layer, number in zip(layers, homes, strict=True):
        layer.to(f"cuda:{number}")
    assert gt.replace_linear(layers) == ("0", "1", "2")
    x = torch.randn(96, 160, device="cuda:0", dtype=torch.bfloat16, requires_grad=True)

    for _ in range(3):
        x.grad = None
        layers.zero_grad()
        got = x
        for layer, number in zip(layers, homes, strict=True):
            got = torch.relu(layer(got.to(f"cuda:{number}")))
        got.float().square().mean().backward()
        assert got.device.index == 1
        assert x.grad.device.index == 0
    with torch.no_grad():
        y = x.double()
        for layer, number in zip(layers, homes, strict=True):
            y = torch.relu(y.to(f"cuda:{number}") @ layer.weight.double().t() + layer.bias.double())
        assert (got.double() - y).abs().max() < 0.05 * y.abs().max()
    assert all(torch.isfinite(layer.weight.grad).all() for layer in layers)
    assert [layer.weight.grad.device.index for layer in layers] == list(homes)


def test_grouped_scaled_and_transposes_on_the_second(torch, gt):
    tokens = torch.randn(300, 256, device="cuda:1", dtype=torch.bfloat16)
    experts = torch.randn(4, 256, 192, device="cuda:1", dtype=torch.bfloat16)
    ends = torch.tensor([70, 70, 201, 300], device="cuda:1", dtype=torch.int32)
    for _ in range(2):
        got = gt.grouped_mm(tokens, experts, offs=ends)
        assert got.device.index == 1
        start = 0
        for expert, end in zip(experts, ends.tolist(), strict=True):
            expected = tokens[start:end].double() @ expert.double()
            assert torch.allclose(got[start:end].double(), expected, atol=0.5, rtol=0.02)
            start = end
    x = torch.randn(256, 512, device="cuda:1").to(torch.float8_e4m3fn)
    w = torch.randn(384, 512, device="cuda:1").to(torch.float8_e4m3fn)
    one = torch.tensor(0.5, device="cuda:1")
    for _ in range(2):
        got = gt.scaled_mm(x, w.t(), one, one, out_dtype=torch.bfloat16)
        assert got.device.index == 1
        assert torch.allclose(got.double(), x.double() @ w.double().t() / 4, atol=0.5, rtol=0.02)
    y = torch.randn(333, 1001, device="cuda:1")
    for _ in range(3):
        got = gm.transpose(y)
        assert got.device.index == 1
        assert torch.equal(got, y.t())


def test_a_graph_captured_on_the_second(torch, rng):
    a, b = (to_torch(torch, x).to("cuda:1") for x in matrices(rng, "bfloat16", 131, 257, 1000))
    expected = gm.matmul(a, b)
    with torch.cuda.device(1):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = gm.matmul(a, b)
        got.zero_()
        graph.replay()
        torch.cuda.synchronize()
    assert torch.equal(got, expected)


def test_cupy_on_the_second(cupy, rng):
    for shape in ((256, 320, 512), (129, 131, 515)):
        a, b = matrices(rng, "float32", *shape)
        with cupy.cuda.Device(1):
            pair = cupy.asarray(a), cupy.asarray(b)
        for _ in range(3):
            got = gm.matmul(*pair)
            assert got.data.device_id == 1
            assert_product(cupy.asnumpy(got), a, b)
        assert cupy.cuda.runtime.getDevice() == 0


def test_arrays_that_only_name_their_memory(cupy, rng):
    """The CUDA array interface does not say on which GPU memory is."""

    class Named:
        def __init__(self, array):
            self.array, self.__cuda_array_interface__ = array, array.__cuda_array_interface__

    a, b = matrices(rng, "float32", 129, 131, 515)
    with cupy.cuda.Device(1):
        named = [Named(cupy.asarray(x)) for x in (a, b, np.full((129, 131), np.nan, np.float32))]
        cupy.cuda.Device(1).synchronize()
        for _ in range(2):
            gm.matmul(*named)
        assert_product(cupy.asnumpy(named[2].array), a, b)


def test_jax_arrays_on_the_second_and_sharded_ones(jax, rng):
    import gemmule.jax as gj

    devices = jax.devices()[:2]
    a, b = matrices(rng, "float32", 260, 140, 515)
    placed = [jax.device_put(x, devices[1]) for x in (a, b)]
    compiled = jax.jit(gj.matmul)
    for _ in range(3):
        for got in (gm.matmul(*placed), compiled(*placed)):
            assert got.devices() == {devices[1]}
            assert_product(np.asarray(got), a, b)
    x, ends = rng.standard_normal((90, 64), dtype=np.float32), np.array([30, 0, 41, 19], np.int32)
    experts = rng.standard_normal((4, 64, 40), dtype=np.float32)
    got = jax.jit(gj.ragged_dot)(*[jax.device_put(value, devices[1]) for value in (x, experts, ends)])
    assert got.devices() == {devices[1]}
    expected = np.concatenate([x[:30] @ experts[0], x[30:71] @ experts[2], x[71:] @ experts[3]])
    np.testing.assert_allclose(np.asarray(got), expected, atol=1e-4)
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices)
    rows, every = jax.sharding.PartitionSpec("rows", None), jax.sharding.PartitionSpec(None, None)
    spread = jax.jit(jax.shard_map(gj.matmul, mesh=mesh, in_specs=(rows, every), out_specs=rows, check_vma=False))
    for _ in range(3):
        got = spread(a, b)
        assert got.devices() == set(devices)
        assert_product(np.asarray(got), a, b)


def test_streamed_through_both(rng):
    a, b = matrices(rng, "float32", 1501, 1203, 1037)
    for devices in ([0, 1], [1]):
        out = np.full((1501, 1203), np.nan, np.float32)
        gm.outofcore.matmul(a, b, out, executor="gpu", devices=devices, device_memory=4 << 20)
        assert_product(out, a, b)
