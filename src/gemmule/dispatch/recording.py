"""``GEMMULE_RECORD``: a file of the products that ran on a GPU, each once, for tuning."""

from __future__ import annotations

import functools
import json
import os
import threading
import warnings

from gemmule.core.problem import GemmProblem, Problem

from .choices.choice_cache import register_clear
from .problem_key import ProblemKey, key_of
from .tuned_table import chip_name

_written: set[tuple[str, ProblemKey]] = set()
_lock = threading.Lock()


class RecordingWarning(UserWarning):
    """Products cannot be recorded."""


@functools.cache
def is_recording() -> bool:
    """Return whether ``$GEMMULE_RECORD`` names a file, as of the last call of `clear_choices`."""
    return bool(os.environ.get("GEMMULE_RECORD"))


register_clear(is_recording.cache_clear)


def record_shape(problem: Problem, device: str) -> None:
    """Append a product as a line of JSON to the file ``$GEMMULE_RECORD``, once in a process."""
    path = os.environ.get("GEMMULE_RECORD")
    if not path or not isinstance(problem, GemmProblem):
        return
    key = key_of(problem)
    if key is None:
        return
    with _lock:
        if (path, key) in _written:
            return
        _written.add((path, key))
    line = json.dumps({"record": "shape", **key.as_dict(), "chip": chip_name(device)}) + "\n"
    try:
        # One appending write: lines of several processes do not mix. A named pipe without a reader must not block.
        nonblocking = getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | nonblocking, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        warnings.warn(f"GEMMULE_RECORD: products cannot be recorded: {error}", RecordingWarning, stacklevel=3)
