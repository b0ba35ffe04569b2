"""The parts of a file that the page cache holds."""

from __future__ import annotations

import contextlib
import os
import secrets


def held(path: str, step: int) -> list[bool]:
    """Return, for every `step` bytes of a file, whether a page in there is in the page cache.

    The page is random: a query may fetch an absent page, so that a second query of the same one
    would find it. Systems without such a query count as empty.
    """
    size = os.path.getsize(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if hasattr(os, "posix_fadvise"):
            # No read-ahead.
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
        # The error for an absent page, or of a system without such reads.
        return False
