"""Random profiles, drawn by Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from gemmule.executor.activity import Call, Copy, KernelRun, Profile, Range

NAMES = st.sampled_from(["one", "two", "three"])


SHAPES = st.sampled_from([((4, 4, 1), (128, 1, 1)), ((7, 7, 1), (256, 1, 1))])


SPANS = st.tuples(st.integers(0, 5000), st.integers(0, 3000)).map(lambda pair: (pair[0], pair[0] + pair[1]))


CORRELATIONS = st.integers(1, 12)


@st.composite
def profiles(draw):
    kernels = draw(st.lists(st.tuples(NAMES, SPANS, SHAPES, CORRELATIONS), max_size=20))
    copies = draw(st.lists(st.tuples(NAMES, SPANS, st.integers(0, 10**9), CORRELATIONS), max_size=20))
    calls = draw(st.lists(st.tuples(NAMES, SPANS, st.integers(1, 2)), max_size=12))
    return Profile(
        tuple(KernelRun(name, *span, 0, 7, number, *shape, 32, 0) for name, span, shape, number in kernels),
        tuple(Copy(name, *span, 0, 7, number, size) for name, span, size, number in copies),
        tuple(Call(name, *span, thread, number) for number, (name, span, thread) in enumerate(calls, 1)),
        draw(nested_ranges()),
    )


@st.composite
def nested_ranges(draw):
    """Ranges of two threads that lie in one another or apart, as blocks of a program do."""
    found = []

    def fill(thread, start, end, depth):
        cuts = (
            sorted(draw(st.lists(st.integers(start, end), min_size=2, max_size=6, unique=True))) if end > start else []
        )
        for number in range(0, len(cuts) - 1, 2):
            found.append(Range(f"{thread}.{depth}.{len(found)}", cuts[number], cuts[number + 1], thread))
            if depth < 2 and draw(st.booleans()):
                fill(thread, cuts[number] + 1, cuts[number + 1] - 1, depth + 1)

    for thread in (1, 2):
        fill(thread, 0, 9000, 0)
    return tuple(draw(st.permutations(found)))
