"""A process that runs CTAs for another: ``python -m gemmule.vgpu.worker``.

It reads requests, one JSON object a line: what a launch is, or a range of its CTAs. Each range is answered with one
line: ``ok``, or ``failed`` where a kernel did something wrong, which the asking process then meets itself.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from gemmule.core.errors import GemmuleError

from .engine.batch import Batch, Setting
from .requests import setting_of


def main() -> None:
    """Answer requests until the input ends."""
    setting: Setting | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "ptx" in request:
            setting = setting_of(request)
            continue
        assert setting is not None
        try:
            with np.errstate(all="ignore"):
                Batch(setting, range(*request["ctas"])).run()
        except GemmuleError:
            print("failed", flush=True)
        else:
            print("ok", flush=True)


if __name__ == "__main__":
    main()
