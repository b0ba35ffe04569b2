"""Plans of products that were never made, with the addresses of their operands."""

from __future__ import annotations

import types

import pytest

from gemmule.api.epilogues.ending import ending_of
from gemmule.api.epilogues.gated import WHOLE, storage_of
from support.fakes import call_caches, planners
from support.fakes.tensors import FakeTensor


def ending_of_names(*, epilogue, bias, c, gated, absmax, **_):
    storage = storage_of(epilogue, gated)
    return ending_of(epilogue, bias, c, None, gated=storage is not None, absmax=absmax is not None)


@pytest.fixture(autouse=True)
def plans(monkeypatch, fake, state):
    """Let plans with an epilogue say where its operands lie, as those of real products do."""

    def plan_product(operation, a, b, **options):
        state.planned.append((operation, a, b, options))
        # What a name stands for is left to the plan.
        named = options["traced"] is None and options["epilogue"] is not None
        ending, arrays = options["traced"] or (ending_of_names(**options) if named else (None, {}))
        result = options["out"] if options["out"] is not None else FakeTensor(0x700000 + 0x1000 * len(state.planned))
        given = {"a": a, "b": b, "c": options["c"], "bias": options["bias"], **arrays, "up": options["gated"]}
        named = {"a": "a", "b": "b"} | ({"c": "c"} if options["beta"] or (ending and ending.expression.names_c) else {})
        named |= {f"e{place}": role for place, role in enumerate(ending.roles if ending else ())}
        named |= {"c": "bias"} if ending is None and options["bias"] is not None else {}
        named |= {"u": "up"} if ending is not None and ending.gated else {}
        places = {}
        for operand, role in named.items():
            part = given.get(role) is None or isinstance(given[role], str)
            whole = given[WHOLE[role] if part else role]
            # A second half begins two elements behind the first.
            places[operand] = (role, getattr(whole, "address", 0) + (8 if part and "gates" not in role else 0))
        plan = {"executor": "gpu", "choice": "choice", "problem": "problem", "places": places}
        return types.SimpleNamespace(**plan, product=None, execute=lambda: result)

    planners.replaced(monkeypatch, "plan_product", call_caches.planner(plan_product))
