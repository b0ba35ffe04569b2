"""Products and transposes of JAX's arrays on a GPU: programs of XLA's, from the second call with arrays of a kind on.

XLA owns the result's memory and orders the work on streams of its own, of which Python need not know. The first call is
planned, and refused where something is wrong; what it decided is what the program calls. So nothing is compiled by XLA
for arrays and numbers that come once.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from gemmule.core.problem import GemmProblem, TransposeProblem

from ..epilogues.gated import WHOLE
from ..planning.plan import Plan

if TYPE_CHECKING:
    from gemmule.jax.launches import Recipe


#: Limit of cached programs, and of calls seen once; the oldest is evicted.
MOST_PROGRAMS = 1024
# Devices by sharding: far fewer than programs.
_MOST_PLACES = 256
# Types that are no arrays need no place there.
_MOST_TYPES = 64


_adding = threading.Lock()
# By type of array; None for those that go another way.
_known: dict[type, JaxPrograms | None] = {}


def programs_for(kind: type) -> JaxPrograms | None:
    """Return the cache of programs for a type of array: for JAX's own, if its foreign functions can be used."""
    return _known[kind] if kind in _known else _first_seen(kind)


def _first_seen(kind: type) -> JaxPrograms | None:
    found = _made_for(kind)
    with _adding:
        return _known.setdefault(kind, found) if len(_known) < _MOST_TYPES else found


def _made_for(kind: type) -> JaxPrograms | None:
    if kind.__module__.partition(".")[0] not in ("jaxlib", "jax"):
        return None
    import jax

    from gemmule.core.errors import UnsupportedError

    if not issubclass(kind, jax.Array) or issubclass(kind, jax.core.Tracer) or not hasattr(jax, "ffi"):
        return None
    try:
        import gemmule.jax  # noqa: F401
    except UnsupportedError:
        # Its interface is of another version: arrays go through DLPack.
        return None
    return JaxPrograms(jax, kind)


class Program:
    """A compiled XLA program for arrays of certain shapes, types and places.

    Parameters
    ----------
    jax : module
        JAX.
    operation : str
        What JAX's profiles call it.
    recipe : gemmule.jax.launches.Recipe
        Recipe of the launch.
    result : jax.ShapeDtypeStruct
        The result.
    device : jax.Device
        The GPU.
    wide : bool
        Whether there are types that JAX has in its 64-bit mode only.
    """

    def __init__(
        self, jax: Any, operation: str, recipe: Recipe, result: Any, device: Any, *, wide: bool
    ) -> None:  # fmt: skip
        self.wide = wide
        self.compiled: Any = None
        self._jax, self._operation, self._recipe, self._result, self._device = jax, operation, recipe, result, device

    def compile(self, arrays: tuple[Any, ...]) -> Any:
        """Compile it, for arrays that are as committed to the GPU as these."""
        from gemmule.jax.launches import KEPT, keep

        # Calls that are never compiled need no entry.
        jax, name = self._jax, keep(self._recipe)

        def call(*arrays: Any) -> Any:
            return jax.ffi.ffi_call(KEPT, self._result)(*arrays, name=name)

        call.__name__ = f"gemmule_{self._operation}"
        # Arrays that are committed to no device stay on theirs nevertheless.
        with jax.default_device(self._device):
            self.compiled = jax.jit(call).lower(*arrays).compile()
        return self.compiled


class JaxPrograms:
    """Programs for JAX's arrays.

    Parameters
    ----------
    jax : module
        JAX.
    kind : type
        Type of its arrays.
    """

    def __init__(self, jax: Any, kind: type) -> None:
        self._jax, self._kind = jax, kind
        self._single = jax.sharding.SingleDeviceSharding
        self._places: dict[Any, Any] = {}
        # Calls seen once, and compiled ones: the former evict none of the latter.
        self._seen: dict[Hashable, Program] = {}
        self._programs: dict[Hashable, Program] = {}
        self._adding = threading.Lock()

    def describe(self, a: Any, b: Any, others: tuple[Any, ...], options: tuple[Any, ...]) -> Hashable | None:
        """Return the description of a call with these arrays; None where it is unusual.

        The last of the others is the output; each may be None.
        """
        kind: Any = self._kind
        if type(b) is not kind or others[-1] is not None:
            return None
        place = self._place(a)
        if place is None or self._place(b) is not place:
            return None
        key: tuple[Any, ...] = (options, place, a.aval, b.aval)
        committed = a._committed or b._committed
        for number, x in enumerate(others[:-1]):
            if x is not None:
                if type(x) is not kind or self._place(x) is not place:
                    return None
                key = (*key, number, x.aval)
                committed = committed or x._committed
        return (*key, committed)

    def _place(self, x: Any) -> Any:
        """Return the GPU that an array is on; None where it is on several, or elsewhere."""
        sharding = x.sharding
        found = self._places.get(sharding, self)
        if found is not self:
            return found
        found = None
        if type(sharding) is self._single and getattr(sharding, "memory_kind", None) in (None, "device"):
            (device,) = sharding.device_set
            found = device if device.platform in ("gpu", "cuda") else None
        with self._adding:
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            self._places[sharding] = found
        return found

    def run(self, key: Hashable, arrays: tuple[Any, ...]) -> Any:
        """Run the cached program with other arrays; return None where a plan has to check them."""
        program = self._programs.get(key) or self._seen.get(key)
        if program is None or (program.wide and not self._jax.config.jax_enable_x64):
            return None
        compiled = program.compiled
        if compiled is None:
            compiled = program.compile(arrays)
            self._add(self._programs, key, program)
            with self._adding:
                self._seen.pop(key, None)
        try:
            return compiled(*arrays)
        except ValueError:
            # Their layout differs from that of the compiled program.
            return None

    def keep_product(self, plan: Plan, key: Hashable, inputs: Mapping[str, Any], result: Any) -> None:
        """Keep what a plan decided of a product, if it ran on a GPU; the inputs are those that were given."""
        if plan.executor != "gpu" or not isinstance(plan.problem, GemmProblem) or key in self._programs:
            return
        order = {role: place for place, role in enumerate(inputs)}
        places = [(order[role if role in order else WHOLE[role]], address) for role, address in plan.places.values()]
        # An array begins where the first of its parts does, which is the one of the gates.
        first: dict[int, int] = {}
        for place, address in places:
            first[place] = min(first.get(place, address), address)
        begins = [(place, address - first[place]) for place, address in places]
        self._keep(plan, key, (*plan.places, "d"), (*begins, (len(inputs), 0)), tuple(inputs.values()), result)

    def keep_transpose(self, plan: Plan, key: Hashable, x: Any, result: Any) -> None:
        """Keep what a plan decided of a transpose, as of a product."""
        if plan.executor != "gpu" or not isinstance(plan.problem, TransposeProblem) or key in self._programs:
            return
        self._keep(plan, key, ("a", "d"), ((0, 0), (1, 0)), (x,), result)

    def _keep(
        self,
        plan: Plan,
        key: Hashable,
        operands: tuple[str, ...],
        begins: tuple[tuple[int, int], ...],
        inputs: tuple[Any, ...],
        result: Any,
    ) -> None:
        from gemmule.jax.launches import Recipe, most_aligned
        from gemmule.runtime.arrays.jax_arrays import is_c_contiguous

        if 0 in result.shape or not all(map(is_c_contiguous, inputs)):
            return
        assert plan.problem is not None
        recipe = Recipe(most_aligned(plan.problem, operands, begins), operands, begins)
        described = self._jax.ShapeDtypeStruct(result.shape, result.dtype)
        wide = any(x.dtype.name in _WIDE for x in (*inputs, result))
        program = Program(self._jax, plan.operation, recipe, described, self._place(inputs[0]), wide=wide)
        self._add(self._seen, key, program)

    def _add(self, programs: dict[Hashable, Program], key: Hashable, program: Program) -> None:
        with self._adding:
            while len(programs) >= MOST_PROGRAMS:
                del programs[next(iter(programs))]
            programs[key] = program


_WIDE = frozenset(("int64", "uint64", "float64", "complex128"))
