"""Which parts of a file the page cache holds."""

from __future__ import annotations

import contextlib
import os
import secrets


def held(path: str, step: int) -> list[bool]:
    """Return, for every `step` bytes of a file, whether a page in there is in the page cache.

    Which page is left to chance: asking for one that is not there may fetch it, so that who asked for the same one
    again would find it. Where the system does not tell, nothing is held.
    """
    size = os.path.getsize(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if hasattr(os, "posix_fadvise"):
            # Nothing is read ahead of what is asked for.
            with contextlib.suppress(OSError):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return [
            _there(descriptor, start + secrets.randbelow(min(step, size - start))) for start in range(0, size, step)
        ]
    finally:
        os.close(descriptor)


def _there(descriptor: int, place: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(1)], place, os.RWF_NOWAIT) == 1
    except (AttributeError, NotImplementedError, OSError):
        # The answer for a page that would be waited for, or of a system that cannot tell.
        return False
