"""What a rung of the ladder changes: the kernel's class beside that of the rung before, as a unified diff.

The names of the class and of its config say which rung it is and nothing else, so both become the same in every rung:
only what is computed differently remains.
"""

from __future__ import annotations

import ast
import difflib
import re
from pathlib import Path

from gemmule.dispatch.registry import REGISTRY

_SOURCE = Path(__file__).parents[2] / "src"
#: What the class and its config are called in every rung.
_CLASS, _CONFIG = "Kernel", "Config"


def class_source(kernel: str) -> str:
    """Return the source of a kernel's class, with the names that every rung shares.

    Parameters
    ----------
    kernel : str
        Name of the kernel.

    Raises
    ------
    KeyError
        If there is no such kernel, or its module has not exactly one class.
    """
    package = next((spec.package for spec in REGISTRY if spec.name == kernel), None)
    if package is None:
        raise KeyError(f"no kernel {kernel}")
    path = Path(*_SOURCE.parts, *package.split("."), "kernel.py")
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    if len(classes) != 1:
        raise KeyError(f"{kernel} has {len(classes)} classes, not one")
    source = ast.get_source_segment(text, classes[0])
    assert source is not None
    names = {classes[0].name: _CLASS} | {name: _CONFIG for name in _imported(tree) if name.endswith("Config")}
    return re.sub(r"\b(?:" + "|".join(names) + r")\b", lambda match: names[match[0]], source)


def _imported(tree: ast.Module) -> list[str]:
    """Return the names that a kernel's module imports."""
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return [alias.name for node in imports for alias in node.names]


def source_block(kernel: str) -> str:
    """Return the class of a kernel as a block of a page, for a rung that has none before it."""
    return f"```py\n{class_source(kernel)}\n```"


def diff_block(before: str, after: str) -> str:
    """Return the unified diff from one rung to the next as a block of a page."""
    old, new = (class_source(kernel).splitlines() for kernel in (before, after))
    lines = difflib.unified_diff(old, new, before, after, lineterm="")
    # An editor that strips trailing blanks must not change the page.
    return "\n".join(["```diff", *(line.rstrip() for line in lines), "```"])
