"""Launching a compiled kernel from its artifact and its launch recipe; the compiler is not needed."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

from gemmule.compiler.artifact import Artifact
from gemmule.core.errors import UnsupportedError
from gemmule.core.launch import Launch, Param, TensorMapParam

from .device import current, get_device
from .driver import call, driver
from .tensor_maps import encoded

# Beyond this, a function's maximum dynamic shared memory must be set.
_SHARED_WITHOUT_OPT_IN = 48 * 1024
# CTAs of a cluster that every GPU with clusters can have; a function attribute must allow more.
_PORTABLE_CLUSTER = 8
#: The carve-out that leaves the memory of an SM to the driver: that of a function that nothing was set of.
_DRIVERS = -1


class PreparedLaunch:
    """A launch with its parameters packed; calling it queues it on its stream. Made by `LoadedKernel.prepare`.

    Parameters
    ----------
    function, config
        The driver's function and launch configuration.
    packed : sequence of bytes
        The parameters in order.
    """

    def __init__(self, ordinal: int, function: Any, config: Any, packed: Sequence[bytes]) -> None:
        self._ordinal, self._function, self._config = ordinal, function, config
        self._buffers = [ctypes.create_string_buffer(value, len(value)) for value in packed]
        self._addresses = (ctypes.c_void_p * len(self._buffers))(*map(ctypes.addressof, self._buffers))

    def __call__(self) -> None:
        with current(self._ordinal):
            call("cuLaunchKernelEx", self._config, self._function, ctypes.addressof(self._addresses), 0)


class LoadedKernel:
    """A kernel in the memory of one GPU.

    Parameters
    ----------
    artifact : Artifact
        The compiled kernel.

    Attributes
    ----------
    function : CUfunction
        The driver's handle of it.
    """

    def __init__(self, artifact: Artifact, ordinal: int) -> None:
        self.artifact = artifact
        self.ordinal = ordinal
        with current(ordinal):
            self._module = call("cuModuleLoadData", artifact.cubin)
            self.function = call("cuModuleGetFunction", self._module, artifact.entry.encode())
        self._shared_allowed, self._carve_out = _SHARED_WITHOUT_OPT_IN, _DRIVERS

    def launch(self, launch: Launch, pointers: Mapping[str, int], stream: int) -> None:
        """Queue one launch on a stream.

        Parameters
        ----------
        launch : Launch
            The recipe.
        pointers : mapping of str to int
            Address of every operand that the recipe names.
        stream : int
            The driver's handle of the stream.

        Raises
        ------
        UnsupportedError
            If the recipe needs more shared memory than the GPU has.
        DriverError
            If the driver refuses the launch.
        """
        self.prepare(launch, pointers, stream)()

    def prepare(self, launch: Launch, pointers: Mapping[str, int], stream: int) -> PreparedLaunch:
        """Return a launch whose parameters are packed once, to be queued again and again.

        Parameters
        ----------
        launch, pointers, stream
            As of `launch`.

        Raises
        ------
        UnsupportedError
            If the recipe needs more shared memory than the GPU has.
        """
        with current(self.ordinal):
            self.allow(launch)
            packed = [_packed(param, pointers) for param in launch.params]
        return PreparedLaunch(self.ordinal, self.function, self.config(launch, stream), packed)

    def allow(self, launch: Launch) -> None:
        """Opt in to the shared memory of a launch, and to a cluster that not every GPU has."""
        attributes = driver().CUfunction_attribute
        if math.prod(launch.cluster) > _PORTABLE_CLUSTER:
            call("cuFuncSetAttribute", self.function, attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
        if (percent := launch.carve_out) is not None and percent != self._carve_out:
            carve_out = attributes.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            call("cuFuncSetAttribute", self.function, carve_out, percent)
            self._carve_out = percent
        wanted = launch.shared_bytes
        if wanted <= self._shared_allowed:
            return
        limit = get_device(self.ordinal).max_shared_bytes
        if wanted > limit:
            raise UnsupportedError(
                f"{self.artifact.kernel} needs {wanted} bytes of shared memory a CTA; this GPU has {limit}"
            )
        call("cuFuncSetAttribute", self.function, attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, wanted)
        self._shared_allowed = wanted

    def config(self, launch: Launch, stream: int) -> Any:
        """Return the driver's configuration of a launch."""
        bindings = driver()
        config = bindings.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
        config.sharedMemBytes = launch.shared_bytes
        config.hStream = stream
        attributes = []
        if launch.cluster != (1, 1, 1):
            attribute = bindings.CUlaunchAttribute()
            attribute.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            dimension = attribute.value.clusterDim
            dimension.x, dimension.y, dimension.z = launch.cluster
            attributes.append(attribute)
        if launch.overlaps and get_device(self.ordinal).arch.has_dependent_launches:
            attribute = bindings.CUlaunchAttribute()
            attribute.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if attributes:
            config.attrs, config.numAttrs = attributes, len(attributes)
        return config


def _packed(param: Param, pointers: Mapping[str, int]) -> bytes:
    if isinstance(param, TensorMapParam):
        return encoded(param, pointers[param.operand] + param.offset)
    return param.pack(pointers)


class _Loaded:
    """Kernels in GPU memory, found by the artifact object that they were made of."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[int, int], LoadedKernel] = {}

    def __call__(self, artifact: Artifact, ordinal: int) -> LoadedKernel:
        # The kernel keeps its artifact alive, so that the id stays its own.
        key = (id(artifact), ordinal)
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = LoadedKernel(artifact, ordinal)
        return kernel


loaded_kernel = _Loaded()
