"""CuPy's own objects for streams that others have made."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class _Handle:
    """A stream by its address, as the CUDA stream protocol describes one."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def external_stream(cupy: Any, stream: int, device: int) -> Any:
    """Return CuPy's object for a stream; `device` is its GPU, and the current one."""
    from_external = getattr(cupy.cuda.Stream, "from_external", None)
    # CuPy 14 brings the protocol, and warns of what was there before.
    return cupy.cuda.ExternalStream(stream, device) if from_external is None else from_external(_Handle(stream))
