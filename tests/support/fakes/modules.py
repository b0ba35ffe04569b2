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


def not_installed(*packages):
    """Let imports of packages fail while the block runs, with those of their modules that were imported before."""
    own = {name for name in sys.modules if name.partition(".")[0] in packages}
    return replaced(dict.fromkeys((*packages, *own)))
