"""The CHANGELOG lists each change once."""

from collections import Counter
from pathlib import Path

CHANGELOG = Path(__file__).parents[3] / "CHANGELOG.md"
#: Characters of an entry that tell it from others.
_BEGIN = 60


def test_no_change_is_listed_twice():
    """Merges may leave both forms of an entry."""
    lines = CHANGELOG.read_text(encoding="utf-8").splitlines()
    begins = Counter(line[:_BEGIN] for line in lines if line.startswith("- "))
    assert [begin for begin, count in begins.items() if count > 1] == []
