"""The interpreter: all threads of several CTAs at once, as lanes of NumPy arrays."""


def load_definitions() -> None:
    """Import the files that define instructions."""
    from . import (  # noqa: F401
        atomics,
        bits,
        carry,
        compare,
        control,
        convert,
        copies,
        floating,
        integer,
        loads,
        map_parts,
        matrix,
        mbarrier,
        move,
        signs,
        votes,
        warp,
        wgmma,
    )
