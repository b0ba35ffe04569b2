"""Proves a refactor neutral: ``python tools/compare_ptx.py BASE [HEAD] [--all] [--most N] [--kernels NAME,…]``.

Compiles registered kernels, configs and signatures at two commits and compares their PTX, with symbols, registers and
labels numbered as they appear, and their launch recipes. Renamed kernels are paired by `gemmule.dispatch.former_names`
and ``tools/renamed.json``; a kernel without a pair fails, and so does any difference. HEAD defaults to the working
tree. Compiled kernels come from gemmule's cache, so that a commit is compiled once.

A sample is compared unless ``--all`` is given: of each kernel every config in two signatures, of `hopper_gemm` and
`g07_cp_async` (by today's names) in all. ``--most N`` leaves N of each kernel's, evenly spread: for a first look.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gemmule.dispatch import former_names

ROOT = Path(__file__).resolve().parents[1]
RENAMED = ROOT / "tools" / "renamed.json"
#: Kernels that are compared in every signature.
WHOLE = ("hopper_gemm", "g07_cp_async")
#: Signatures of any other kernel's config that are compared.
SAMPLED = 2
#: What `ptx_listing.py` prints before the reason, in the place of PTX, where a kernel does not compile.
FAILED = "error: "
# Lines of a difference that are printed.
_LINES = 12

Key = list[Any]


def renamed(key: Key, names: Mapping[str, Any]) -> str:
    """Return what a key of BASE is at HEAD, as text.

    Parameters
    ----------
    key : list
        Kernel, config and signature.
    names : mapping
        ``kernels``, from old names to new ones; ``fields`` and ``signatures``, by HEAD's kernel, from old config fields
        and signature keys to new ones (null: left out at HEAD); ``values``, likewise, config fields that BASE may lack.
    """
    kernel, config, signature = key
    kernel = names.get("kernels", {}).get(kernel, kernel)

    def mapped(kind: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        new = {**names.get(kind, {}).get("*", {}), **names.get(kind, {}).get(kernel, {})}
        return {new.get(name, name): value for name, value in pairs if new.get(name, name) is not None}

    fields = names.get("values", {}).get(kernel, {}) | mapped("fields", list(config.items()))
    return canonical([kernel, fields, [*mapped("signatures", signature).items()]])


def canonical(key: Key) -> str:
    """Return a key as text that does not depend on the order of fields."""
    kernel, config, signature = key
    return json.dumps([kernel, dict(sorted(config.items())), sorted([name, str(value)] for name, value in signature)])


def sampled(keys: list[Key]) -> list[Key]:
    """Return the keys of a sample: signatures of a kernel in turn over its configs."""
    seen: dict[str, dict[str, list[Key]]] = {}
    for key in keys:
        seen.setdefault(key[0], {}).setdefault(json.dumps(key[1]), []).append(key)
    found = []
    for kernel, configs in seen.items():
        for number, of_config in enumerate(configs.values()):
            if former_names.current_names(kernel) in WHOLE:
                found += of_config
            else:
                count = min(SAMPLED, len(of_config))
                found += [
                    of_config[(number + step * len(of_config) // count) % len(of_config)] for step in range(count)
                ]
    return found


def spread(keys: list[Key], most: int) -> list[Key]:
    """Return at most that many keys of each kernel, from all over its list."""
    of_kernel: dict[str, list[Key]] = {}
    for key in keys:
        of_kernel.setdefault(key[0], []).append(key)
    counts = ((one, min(most, len(one))) for one in of_kernel.values())
    return [one[step * len(one) // count] for one, count in counts for step in range(count)]


def listing(checkout: Path, *arguments: str, keys: list[Key] | None = None) -> Iterator[Any]:
    """Yield what `ptx_listing.py` prints for the sources of a checkout, with its own copy where it has one."""
    own = checkout / "tools" / "ptx_listing.py"
    script = own if own.is_file() else ROOT / "tools" / "ptx_listing.py"
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    text = "".join(json.dumps(key) + "\n" for key in keys or ())
    done = subprocess.run(
        [sys.executable, str(script), *arguments], input=text, env=environment, cwd=checkout, text=True,
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    yield from map(json.loads, done.stdout.splitlines())


def differences(base: Mapping[str, Any], head: Mapping[str, Any]) -> list[str]:
    """Return what differs between a kernel of BASE and its pair."""
    found = []
    if head["ptx"].startswith(FAILED):
        found.append(f"HEAD does not compile: {head['ptx'].removeprefix(FAILED)}")
    elif base["ptx"] != head["ptx"]:
        lines = difflib.unified_diff(base["ptx"].splitlines(), head["ptx"].splitlines(), "base", "head", "", "", 0, "")
        changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
        found.append(f"PTX differs in {len(changed)} lines: " + " | ".join(line.strip() for line in changed[:_LINES]))
    if base["launches"] != head["launches"]:
        found.append("launch recipes differ")
    return found


def compare(
    base: Path,
    head: Path,
    names: Mapping[str, Any],
    kernels: list[str],
    *,
    every: bool,
    most: int = 0,
    listed: Callable[..., Iterator[Any]] = listing,
) -> list[str]:
    """Compare two checkouts; return a line for each difference, and print how many kernels are the same.

    Parameters
    ----------
    base, head : Path
        The checkouts.
    names : mapping
        What was renamed, as `renamed` takes it.
    kernels : list of str
        Kernels of BASE that are compared; all where it is empty.
    every : bool
        Whether every signature is compared, or a sample.
    most : int
        How many of a kernel are compared at most; 0: no limit.
    listed : callable
        Lists a checkout, as `listing` does.
    """
    olds = list(listed(base, "keys", *kernels))
    registered = {key[0] for key in olds}
    if unknown := [name for name in kernels if name not in registered]:
        raise SystemExit(f"BASE has no kernel {', '.join(unknown)}; it has {', '.join(sorted(registered))}")
    wanted = [names.get("kernels", {}).get(name, name) for name in kernels]
    olds = [key for key in olds if not kernels or key[0] in kernels]
    news = {canonical(key): key for key in listed(head, "keys", *wanted) if not kernels or key[0] in wanted}
    pairs = {renamed(key, names): key for key in olds}
    unpaired = [f"only in BASE: {key}" for new, key in pairs.items() if new not in news]
    unpaired += [f"only in HEAD: {key}" for new, key in news.items() if new not in pairs]
    paired = {json.dumps(key): news[new] for new, key in pairs.items() if new in news}
    chosen = [key for key in (olds if every else sampled(olds)) if json.dumps(key) in paired]
    if most:
        chosen = spread(chosen, most)
    before = {json.dumps(one["key"]): one for one in listed(base, "compile", keys=chosen)}
    after = {
        canonical(one["key"]): one for one in listed(head, "compile", keys=[paired[json.dumps(key)] for key in chosen])
    }
    found, same = [], 0
    for key in chosen:
        text = json.dumps(key)
        differing = differences(before[text], after[canonical(paired[text])])
        same += not differing
        found += [f"{key[0]} {key[1]} {dict(key[2])}: {one}" for one in differing]
    print(f"{same} of {len(chosen)} compared are the same; {len(olds)} listed in BASE, {len(news)} in HEAD")
    return unpaired + found


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SystemExit(f"{name} is not installed; install it to compare commits")
    return path


def main() -> int:
    """Compare two commits; the exit status is 1 where anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("head", nargs="?", help="a commit; the working tree where none is given")
    parser.add_argument("--all", action="store_true", help="compare every signature")
    parser.add_argument("--most", type=int, default=0, help="at most so many of each kernel")
    parser.add_argument("--kernels", default="", help="only these, by their names in BASE, with commas between them")
    given = parser.parse_args()
    names = {"kernels": former_names.KERNELS, "fields": former_names.FIELDS}
    if RENAMED.is_file():
        names |= json.loads(RENAMED.read_text())
    with tempfile.TemporaryDirectory() as scratch:

        def checkout(commit: str) -> Path:
            folder = Path(scratch) / commit.replace("/", "-")
            archive = subprocess.run(
                [_tool("git"), "-C", str(ROOT), "archive", commit], stdout=subprocess.PIPE, check=True
            )
            folder.mkdir()
            subprocess.run([_tool("tar"), "-x", "-C", str(folder)], input=archive.stdout, check=True)
            return folder

        head = checkout(given.head) if given.head else ROOT
        kernels = [name for name in given.kernels.split(",") if name]
        found = compare(checkout(given.base), head, names, kernels, every=given.all, most=given.most)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
