"""Times of the functions of epilogues."""

from __future__ import annotations

from gemmule.core.epilogue import Epilogue

#: Microseconds that a warpgroup takes longer for 2**14 elements with a function, and with one of these operations: of
#: records 20261129T203727 and 20261129T210739, H200s; with a matrix that is read by element: 2 to 7 us, of records
#: 20261130T001854 and 20261130T010854.
_FUNCTION_US, _SLOW_US, _MATRIX_US = 0.4, 1.5, 3.0
_SLOW = frozenset({"exp", "log", "tanh", "erf", "sigmoid", "gate", "gelu"})


def function_us(epilogue: Epilogue | None) -> float:
    """Return how much longer a warpgroup takes for 2**14 elements with an epilogue's function."""
    if epilogue is None:
        return 0.0
    return _FUNCTION_US + _SLOW_US * is_slow(epilogue) + _MATRIX_US * reads_a_matrix(epilogue)


def is_slow(epilogue: Epilogue) -> bool:
    """Return whether an epilogue has one of the slow operations."""
    return any(step.split()[0] in _SLOW for step in epilogue.expression.steps)


def reads_a_matrix(epilogue: Epilogue) -> bool:
    """Return whether an input varies by row and by column."""
    return any(min(one.rows, one.cols) > 1 and one.row_stride and one.col_stride for one in epilogue.matrices)
