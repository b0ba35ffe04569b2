"""What docstrings of public names name can be imported from gemmule."""

import ast
import builtins
import inspect
import re
from pathlib import Path

import gemmule as gm
import gemmule.vgpu

SOURCE = Path(gm.__file__).parent
DOCS = SOURCE.parents[1] / "docs"
#: Where docstrings name types and functions: ``name : Type``, a line of Returns or Raises, `` `Name` ``.
_TYPED = re.compile(r"^ *[\w, *]+ : (.*)$|^ *([A-Z]\w*(?:, [A-Z]\w*)*)$(?!\n *---)", re.MULTILINE)
_ERROR = re.compile(r"\b[A-Z][A-Za-z]+(?:Error|Warning)\b")
_QUOTED = re.compile(r"(?<!`)`([A-Za-z_]\w*)(?:\.\w+)?`(?!`)")


def class_names():
    """Return the names of all classes of gemmule."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py"))
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def documented(module):
    """Yield each public function and class of a module, their public methods, and their plans, by name."""
    for name in module.__all__:
        one = getattr(module, name)
        if not callable(one):
            continue
        yield name, one
        if hasattr(one, "plan"):
            yield f"{name}.plan", one.plan
        if inspect.isclass(one):
            members = vars(one).items()
            yield from ((f"{name}.{key}", member) for key, member in members if not key.startswith("_"))


def names_in(text, known):
    """Return the classes of gemmule that a docstring names."""
    parts = [part for found in _TYPED.findall(text) for part in found]
    typed = {word for part in parts for word in re.findall(r"\b[A-Z]\w+\b", part)} & known
    return typed | {name for name in _QUOTED.findall(text) if name in known}


def test_types_in_docstrings_are_public():
    known = class_names()
    missing = []
    for module in (gm, gm.epilogue):
        for name, one in documented(module):
            lacking = {
                found
                for found in names_in(inspect.getdoc(one) or "", known)
                if found not in gm.__all__ and found not in gm.epilogue.__all__
            }
            missing += [f"{name}: {found}" for found in sorted(lacking)]
    assert missing == []


def test_the_types_are_found():
    known = class_names()
    text = """Compute.

    Parameters
    ----------
    x : Budgeted or None
        A word, Product, of a sentence.

    Raises
    ------
    ShapeError, DTypeError
        If `Plan` and `Traced.name` differ, but ``Choice`` does not.
    """
    assert names_in(text, known) == {"Budgeted", "ShapeError", "DTypeError", "Plan", "Traced"}


def test_every_public_name_is_in_the_reference():
    listed = (DOCS / "reference" / "api.md").read_text(encoding="utf-8").split()
    names = {name for module in (gm, gm.vgpu) for name in module.__all__ if callable(getattr(module, name))}
    assert names <= set(listed)


def test_errors_and_warnings_that_pages_and_docstrings_name_are_public():
    public = {*gm.__all__, *gm.vgpu.__all__, *vars(builtins)}
    pages = {page.name: page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md") if "notebook" not in page.parts}
    texts = {name: inspect.getdoc(one) or "" for module in (gm, gm.vgpu) for name, one in documented(module)}
    found = {(name, word) for name, text in (pages | texts).items() for word in _ERROR.findall(text)}
    assert {"PackedKernelWarning", "PtxError"} <= {word for _, word in found}
    assert sorted((name, word) for name, word in found if word not in public) == []
