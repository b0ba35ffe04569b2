"""Functions have few parameters."""

import ast
from pathlib import Path

import gemmule

#: Most parameters of a function, and the public functions that have those of BLAS, and their plans.
MOST = 8
EXCEPTED = {"gemm", "grouped_gemm", "scaled_gemm", "matmul"}


def test_functions_have_few_parameters():
    root, found = Path(gemmule.__file__).parent, []
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = len([one for one in arguments if one.arg not in ("self", "cls")])
                public = node.name in EXCEPTED and path.parent.name in ("api", "planning")
                if count > MOST and not public:
                    found.append(f"{path.relative_to(root)}: {node.name} has {count}")
    assert not found
