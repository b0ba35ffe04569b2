"""Programs of XLA's for gm.matmul and its kin, on the CPU: when one is taken, and what its call tells the launches.

In the place of a GPU's kernels, NumPy reads and writes the memory that a problem describes.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import subprocess
import sys

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import dtype_named
from gemmule.core.errors import ArgumentError, DTypeError, UnsupportedError
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem

jax = pytest.importorskip("jax", reason="JAX is not installed; make test-interop installs it")

import jax.numpy as jnp  # noqa: E402

from gemmule.api.calls import dispatcher, jax_programs  # noqa: E402
from gemmule.dispatch.choices.choice_cache import clear_choices  # noqa: E402
from gemmule.jax import frame, handlers, launches  # noqa: E402
from gemmule.runtime.arrays.jax_arrays import is_c_contiguous  # noqa: E402
from gemmule.runtime.arrays.view import ArrayView  # noqa: E402
from support.fakes import planners  # noqa: E402


def matrix_at(address, matrix, batch):
    """Return memory as an array over the batch, rows and columns."""
    item = matrix.dtype.itemsize
    shape, strides = (*batch, matrix.rows, matrix.cols), (*matrix.batch_strides, matrix.row_stride, matrix.col_stride)
    reach = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1
    memory = (ctypes.c_char * (reach * item)).from_address(address)
    flat = np.frombuffer(memory, matrix.dtype.numpy())
    return np.lib.stride_tricks.as_strided(flat, shape, [item * stride for stride in strides], writeable=True)


def numpy_queue(problem, operands, ordinal):
    """Stand for `launches.queue_of`."""
    DECIDED.append(problem)

    def queue(addresses, stream):
        at = dict(zip(operands, addresses, strict=True))
        seen = {name: matrix_at(at[name], x, problem.batch) for name, x in problem.operands().items()}
        if isinstance(problem, GemmProblem):
            seen["d"][...] = problem.alpha * (seen["a"] @ seen["b"]) + (problem.beta * seen["c"] if "c" in seen else 0)
        else:
            seen["d"][...] = seen["a"]

    return queue


DECIDED = []


@functools.cache
def on_the_cpu():
    """Let XLA call on the CPU what it calls on a GPU."""
    minor = frame.spoken_minor(jax.ffi.include_dir())
    handler = frame.HANDLER(
        lambda address: handlers._answer(lambda call: handlers._on_gpu_as_kept(call), minor, address)
    )
    jax.ffi.register_ffi_target(launches.KEPT, jax.ffi.pycapsule(handler), platform="cpu")
    return handler


def as_on_a_gpu(plan_product):
    """Return a planner whose plans look like those of a GPU, and compute on the host."""

    def plan(call, **options):
        found, a, b, c = plan_product(call, **options), call.a, call.b, call.c
        matrices = {
            role: contiguous(dtype_named(x.dtype.name), *x.shape, alignment=128)
            for role, x in {"a": a, "b": b, "c": c}.items()
            if x is not None
        }
        m, n = a.shape[0], b.shape[1]
        d = contiguous(dtype_named(a.dtype.name), m, n)
        beta = call.beta or 0
        problem = GemmProblem(
            m, n, a.shape[1], (), matrices["a"], matrices["b"], matrices.get("c"), d, call.alpha, beta
        )
        places = {role: (role, 1 << 20) for role in matrices}
        return dataclasses.replace(found, executor="gpu", problem=problem, places=places)

    return plan


def transposes_as_on_a_gpu(plan_transpose):
    def plan(x, order_of, **options):
        from gemmule.core.layout import compact_strides
        from gemmule.core.permutation import transpose_problem

        found = plan_transpose(x, order_of, **options)
        order = order_of(x.ndim)
        strides, shape = compact_strides(x.shape), tuple(x.shape[axis] for axis in order)
        problem = transpose_problem(
            shape, tuple(strides[axis] for axis in order), compact_strides(shape), x.dtype.itemsize, (16, 16)
        )
        return dataclasses.replace(found, executor="gpu", problem=problem)

    return plan


@pytest.fixture
def programs(monkeypatch):
    on_the_cpu()
    found = jax_programs.programs_for(type(jnp.zeros(1)))
    found._programs.clear()
    found._seen.clear()
    launches.kept_queue.cache_clear()
    DECIDED.clear()
    monkeypatch.setattr(found, "_place", lambda x: next(iter(x.devices())) if len(x.devices()) == 1 else None)
    monkeypatch.setattr(handlers, "_ordinal", lambda addresses: 0)
    monkeypatch.setattr(handlers.CallFrame, "stream", lambda call: 0)
    monkeypatch.setattr(handlers, "alignments_of", lambda addresses: ())
    monkeypatch.setattr(launches, "queue_of", numpy_queue)
    planners.replaced(monkeypatch, "plan_product", as_on_a_gpu(dispatcher.plan_product))
    planners.replaced(monkeypatch, "plan_transpose", transposes_as_on_a_gpu(dispatcher.plan_transpose))
    with jax.default_device(jax.devices("cpu")[0]):
        yield found
    found._programs.clear()
    found._seen.clear()
    launches.kept_queue.cache_clear()


def compiled(programs):
    return sum(program.compiled is not None for program in programs._programs.values())


def arrays(rng, *shapes):
    return [jnp.asarray(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]


def test_a_product_is_compiled_at_its_second_call_and_then_found(programs, rng):
    for number in range(4):
        a, b = arrays(rng, (13, 7), (7, 11))
        np.testing.assert_allclose(gm.matmul(a, b), np.asarray(a) @ np.asarray(b), rtol=1e-5, atol=1e-5)
        once = int(number == 0)
        assert (len(programs._seen), len(programs._programs), len(DECIDED)) == (once, 1 - once, 1 - once)
    (problem,) = DECIDED
    # The output is described as it was planned, inputs as memory of XLA's.
    assert (problem.a.alignment, problem.b.alignment, problem.d.alignment) == (256, 256, 16)
    clear_choices()
    np.testing.assert_allclose(gm.matmul(a, b), np.asarray(a) @ np.asarray(b), rtol=1e-5, atol=1e-5)
    assert (compiled(programs), len(DECIDED)) == (1, 2)


def test_calls_that_differ_are_not_taken_for_one_another(programs, rng):
    a, b, c = arrays(rng, (9, 9), (9, 9), (9, 9))
    x, y, z = (np.asarray(t) for t in (a, b, c))
    calls = [
        (lambda: gm.matmul(a, b), x @ y),
        (lambda: gm.matmul(b, a), y @ x),
        (lambda: gm.gemm(a, b, alpha=2.0), 2 * (x @ y)),
        (lambda: gm.gemm(a, b, alpha=-2.0), -2 * (x @ y)),
        (lambda: gm.gemm(a, b, c, beta=1.0), x @ y + z),
        (lambda: gm.gemm(a, b, c, beta=-1.0), x @ y - z),
        (lambda: gm.transpose(a), x.T),
    ]
    for _ in range(3):
        for call, expected in calls:
            np.testing.assert_allclose(call(), expected, rtol=1e-5, atol=1e-4)
    # The first two are one: the arrays themselves are no part of it.
    assert compiled(programs) == len(programs._programs) == len(calls) - 1


def test_transposes(programs, rng):
    for _ in range(3):
        (x,) = arrays(rng, (3, 5, 7))
        host = np.asarray(x)
        np.testing.assert_array_equal(gm.transpose(x), host.T)
        np.testing.assert_array_equal(gm.transpose(x, (1, 0, 2)), host.transpose(1, 0, 2))
        np.testing.assert_array_equal(gm.matrix_transpose(x), host.swapaxes(-1, -2))
    assert compiled(programs) == 3


def test_what_is_unusual_is_planned(programs, rng):
    a, b = arrays(rng, (9, 9), (9, 9))
    for _ in range(3):
        gm.matmul(a, b)
        with pytest.raises(ArgumentError, match="read-only"):
            gm.matmul(a, b, out=a + b)
        with pytest.raises(ArgumentError, match="comes from jax and b from numpy"):
            gm.matmul(a, np.asarray(b))
        with pytest.raises(ArgumentError, match=r"traced by JAX; .* of gemmule\.jax"):
            jax.jit(lambda x: gm.matmul(a, x))(b)
        with pytest.raises(ArgumentError, match="stream was given"):
            gm.matmul(a, b, stream=1)
        with pytest.raises(ArgumentError, match="beta"):
            gm.gemm(a, b, a)
    gone = a + 1
    gone.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        gm.matmul(gone, b)
    assert len(programs._programs) == 1


def test_types_of_the_64_bit_mode(programs):
    before = jax.config.jax_enable_x64
    try:
        jax.config.update("jax_enable_x64", True)
        x = jnp.full((6, 6), 2.0)
        for _ in range(3):
            assert gm.matmul(x, x).dtype == "float64"
        jax.config.update("jax_enable_x64", False)
        with pytest.raises(DTypeError, match="pass out_dtype='float32', or set jax_enable_x64"):
            gm.matmul(x, x)
    finally:
        jax.config.update("jax_enable_x64", before)


def test_within_a_trace_constants_are_computed_at_once(programs, rng):
    a, b = arrays(rng, (9, 9), (9, 9))
    seen = []

    @jax.jit
    def traced(x):
        seen.append(gm.matmul(a, b))
        return x + seen[-1]

    gm.matmul(a, b)
    gm.matmul(a, b)
    np.testing.assert_allclose(traced(a), np.asarray(a) + np.asarray(a) @ np.asarray(b), rtol=1e-4, atol=1e-4)
    assert not isinstance(seen[0], jax.core.Tracer)


def test_results_are_as_committed_as_their_operands(programs, rng):
    a, b = arrays(rng, (9, 9), (9, 9))
    bound = jax.device_put(a, jax.devices("cpu")[0])
    for x, y, committed in ((a, b, False), (bound, b, True), (b, bound, True), (a, b, False)):
        for _ in range(2):
            got = gm.matmul(x, y)
            np.testing.assert_allclose(got, np.asarray(x) @ np.asarray(y), rtol=1e-4, atol=1e-4)
        assert got.committed == committed


def test_what_comes_once_is_not_found_by_xla(programs, rng):
    """Else numbers that differ at every call would fill the memory."""
    a, b = arrays(rng, (9, 9), (9, 9))
    before = len(launches._recipes)
    for number in range(5):
        gm.gemm(a, b, alpha=1.5 + number)
    assert (len(programs._seen), len(programs._programs), len(launches._recipes)) == (5, 0, before)


def test_the_oldest_program_makes_room(programs, rng, monkeypatch):
    monkeypatch.setattr(jax_programs, "MOST_PROGRAMS", 2)
    for n in (3, 4, 5, 4):
        for _ in range(2):
            a, b = arrays(rng, (3, n), (n, 3))
            np.testing.assert_allclose(gm.matmul(a, b), np.asarray(a) @ np.asarray(b), rtol=1e-4, atol=1e-4)
    assert len(programs._programs) == 2
    kept = list(programs._programs)
    for alpha in range(2, 6):
        gm.gemm(a, b, alpha=alpha)
    assert len(programs._seen) == 2
    assert list(programs._programs) == kept


def test_a_host_array_or_one_on_several_devices_has_no_place():
    kind = type(jnp.zeros(1))
    known = jax_programs.JaxPrograms(jax, kind)
    a = jax.device_put(jnp.ones((4, 4)), jax.devices("cpu")[0])
    for _ in range(2):
        assert known._place(a) is None
    assert known.describe(a, a, (None, None), ()) is None
    assert jax_programs.programs_for(np.ndarray) is None
    assert jax_programs.programs_for(jax.core.Tracer) is None


def test_recipes_are_known_by_what_they_say():
    def recipe(m=4, begins=((0, 0), (1, 0), (2, 0))):
        float32 = dtype_named("float32")
        a, b, d = (contiguous(float32, *shape, alignment=256) for shape in ((m, 5), (5, 6), (m, 6)))
        return launches.Recipe(GemmProblem(m, 6, 5, (), a, b, None, d), ("a", "b", "d"), begins)

    assert recipe().name == recipe().name
    assert len({recipe().name, recipe(5).name, recipe(begins=((0, 0), (0, 0), (1, 0))).name}) == 3
    lesser = recipe().aligned((16, 64, 256))
    assert (lesser.a.alignment, lesser.b.alignment, lesser.d.alignment) == (16, 64, 256)
    with pytest.raises(UnsupportedError, match="aligned to 2 bytes"):
        recipe().aligned((2, 256, 256))
    assert launches.alignments_of((512, 1 << 20, 0)) == ()
    assert launches.alignments_of((512, 48, 0)) == (256, 16, 256)


def test_large_elements_of_less_aligned_arrays_are_moved_in_halves(rng):
    """One program has arrays of any alignment."""
    from gemmule.core.permutation import transpose_problem

    x = rng.standard_normal((3, 5, 7)) + 1j
    given = transpose_problem((7, 5, 3), (1, 7, 35), (15, 3, 1), 16, (16, 16))
    operands, begins = ("a", "d"), ((0, 0), (1, 0))
    recipe = launches.Recipe(launches.most_aligned(given, operands, begins), operands, begins)
    assert recipe.aligned((16, 256)) == recipe.problem == given
    for alignments in ((8, 256), (16, 8)):
        problem, out = recipe.aligned(alignments), np.empty((7, 5, 3), complex)
        assert {matrix.dtype.itemsize for matrix in problem.operands().values()} == {8}
        numpy_queue(problem, operands, 0)((x.ctypes.data, out.ctypes.data), 0)
        np.testing.assert_array_equal(out, x.T)
    with pytest.raises(UnsupportedError, match="aligned to 4 bytes"):
        recipe.aligned((4, 256))


def test_a_product_of_one_array_twice_is_kept_for_any_two():
    float32 = dtype_named("float32")
    x = contiguous(float32, 1, 1, alignment=16)
    once = GemmProblem(1, 1, 1, (), x, x.transposed(), None, x, own_transpose=True)
    kept = launches.most_aligned(once, ("a", "b", "d"), ((0, 0), (1, 0), (2, 0)))
    assert not kept.own_transpose


def test_parts_of_arrays_begin_where_they_do(programs):
    """Of a gated activation, B holds two factors."""
    float16 = dtype_named("float16")
    a, b, d = contiguous(float16, 4, 5), contiguous(float16, 5, 6), contiguous(float16, 4, 6)

    @dataclasses.dataclass
    class Planned:
        executor: str
        operation: str
        problem: GemmProblem
        places: dict

    x, y = jnp.ones((4, 5), "float16"), jnp.ones((5, 12), "float16")
    places = {"a": ("a", 4096), "b": ("b", 8192), "up": ("up", 8204)}
    problem = GemmProblem(4, 6, 5, (), a, b, None, d)
    seen = []
    programs._keep = lambda plan, key, operands, begins, *rest: seen.append((operands, begins))
    try:
        programs.keep_product(Planned("gpu", "gemm", problem, places), "key", {"a": x, "b": y}, None)
    finally:
        del programs._keep
    assert seen == [(("a", "b", "up", "d"), ((0, 0), (1, 0), (1, 12), (2, 0)))]


def test_layouts():
    layouts = pytest.importorskip("jax.experimental.layout")
    if not hasattr(layouts, "Format"):
        pytest.skip("this JAX has no Format")
    from gemmule.runtime.arrays import jax_arrays

    place = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    x = jnp.arange(24.0).reshape(2, 3, 4)
    assert is_c_contiguous(x)
    otherwise = jax.device_put(x, layouts.Format(layouts.Layout((2, 0, 1)), place))
    assert not is_c_contiguous(otherwise)
    assert jax_arrays._strides(otherwise) == (3, 1, 6)
    assert isinstance(jax_arrays.JaxLibrary().view(otherwise, None, "a"), ArrayView)
    np.testing.assert_array_equal(gm.transpose(otherwise), np.asarray(x).T)


TWO_DEVICES = """
import jax, jax.numpy as jnp
import gemmule as gm
from gemmule.api.calls.jax_programs import Program
from gemmule.jax import frame, handlers, launches

from gemmule.core.dtype import dtype_named
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem

x = contiguous(dtype_named("float32"), 4, 4)
recipe = launches.Recipe(GemmProblem(4, 4, 4, (), x, x, None, x), ("a", "b", "d"), ((0, 0), (1, 0), (2, 0)))
first, second = jax.devices("cpu")
minor = frame.spoken_minor(jax.ffi.include_dir())
handler = frame.HANDLER(lambda address: handlers._answer(lambda call: None, minor, address))
jax.ffi.register_ffi_target(launches.KEPT, jax.ffi.pycapsule(handler), platform="cpu")
with jax.default_device(second):
    x = jnp.ones((4, 4))
there = jax.device_put(x, second)
for a, b, committed in ((x, x, False), (x, there, True), (there, there, True)):
    got = gm.matmul(a, b)
    assert (got.devices(), got.committed) == ({second}, a.committed), (got.devices(), got.committed)
    program = Program(jax, "matmul", recipe, jax.ShapeDtypeStruct((4, 4), x.dtype), second, wide=False)
    for _ in range(2):
        got = program.compile((a, b))(a, b)
        assert (got.devices(), got.committed) == ({second}, committed), (got.devices(), got.committed)
"""


def test_arrays_stay_on_their_device():
    """Also those that are committed to none, and lie on another one than JAX's default."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES], env=os.environ | flags, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
