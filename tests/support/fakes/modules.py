"""Stand-ins for modules of other packages."""

from __future__ import annotations

import contextlib
import sys


@contextlib.contextmanager
def replaced(modules):
    """Let imports find those modules while the block runs, by name; None for one that is not installed.

    What else is imported meanwhile stays, unlike with `unittest.mock.patch.dict`.
    """
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)
