"""Builds the wheel of compiled kernels: ``make kernels-wheel``, or ``make kernels-wheel KERNELS=few`` for a test."""

import argparse
import os
from pathlib import Path

# Before NumPy is imported: processes that choose on all cores would otherwise have a thread for each core, each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from .build import build_wheel, compiled, write_package
from .members import every_member, few_members


def main() -> None:
    """Choose the kernels, compile them and build the wheel."""
    parser = argparse.ArgumentParser(prog="kernels_wheel", description=__doc__)
    parser.add_argument("root", type=Path, help="the checkout")
    parser.add_argument("kernels", choices=("all", "few"), help="every kernel of the wheel, or a few for a test")
    parser.add_argument("--dist", type=Path, default=Path("dist"), help="folder of the wheel")
    parser.add_argument("--project", type=Path, help="write the project there instead, whose package can be imported")
    parser.add_argument("--workers", type=int, help="compiling processes; one for each CPU by default")
    given = parser.parse_args()
    jobs = every_member(workers=given.workers) if given.kernels == "all" else few_members()
    root = given.root.resolve()
    kernels = compiled(root, jobs, given.workers)
    if given.project is not None:
        write_package(root, jobs, kernels, given.project)
    else:
        build_wheel(root, jobs, kernels, given.dist)


if __name__ == "__main__":
    main()
