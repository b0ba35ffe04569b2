"""Makes the generated blocks of README.md and docs/ anew, the diffs and the plots: ``make pages``."""

import sys
from pathlib import Path

from gemmule.core.errors import UnsupportedError
from gemmule.lab.drawing.theme import THEMES
from gemmule.lab.pictures import Picture, draw

from .blocks import KINDS, PLOTS, generated, listings, pages, pictures, plots_link
from .rung_diff import LISTINGS


def main(root: Path) -> None:
    """Make the blocks of a checkout's pages, the diffs, and the plots where matplotlib is installed."""
    results = root / "benchmarks" / "results"
    shown: dict[str, tuple[Picture, str]] = {}
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        page.write_text(generated(text, results, plots_link(page, root)), encoding="utf-8")
        shown |= pictures(text, results)
        for name, diff in listings(text).items():
            folder = root / "docs" / LISTINGS
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(diff, encoding="utf-8")
    for plot, stem in shown.values():
        try:
            draw(plot, root / PLOTS, stem, THEMES, KINDS)
        except UnsupportedError as error:
            sys.stderr.write(f"the plots stay as they are: {error}\n")
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
