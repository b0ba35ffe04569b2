"""A process that runs CTAs for another: ``python -m gemmule.vgpu.worker``.

It reads requests, one JSON object a line: a launch, or a range of its CTAs. Each range is answered with one line:
``ok``, or ``failed`` where the kernel raised an error, which the calling process then meets itself. The package does
not import this module, which runs as the main one alone.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from gemmule.core.errors import GemmuleError

from .engine.batch import LaunchState
from .engine.program import Program
from .launch_request import launch_of


def main() -> None:
    """Answer requests until the input ends."""
    launch: tuple[Program, LaunchState] | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "ptx" in request:
            launch = launch_of(request)
            continue
        assert launch is not None
        try:
            with np.errstate(all="ignore"):
                program, launch_state = launch
                program.run(launch_state, range(*request["ctas"]))
        except GemmuleError:
            print("failed", flush=True)
        else:
            print("ok", flush=True)


if __name__ == "__main__":
    main()
