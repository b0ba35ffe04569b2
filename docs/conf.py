"""The site, which ``make docs`` builds: the pages of docs/, the README in front, and the interface from docstrings."""

import re
import shutil
from pathlib import Path

from sphinx.application import Sphinx

import gemmule

ROOT = Path(__file__).parents[1]

project = "gemmule"
author = "the gemmule developers"
copyright = author  # noqa: A001 - Sphinx's name
version = release = gemmule.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_click",
    "sphinx_design",
]
exclude_patterns = ["_build", "plots", "listings", "static"]
autodoc_typehints = "none"
autosummary_generate = True
numpydoc_show_class_members = False
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
html_theme = "pydata_sphinx_theme"
html_title = "gemmule"
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"show_toc_level": 2, "header_links_before_dropdown": 6, "footer_end": [], "navbar_align": "left"}


def _source(app: Sphinx, document: str, source: list[str]) -> None:
    """Put the README around the cards of the first page; leave the text alone of links to what the site has not."""
    if document == "index":
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        readme = re.sub(r"\]\((?!docs/|https?:)", "](../", readme)
        intro, heading, rest = re.sub(r'(\]\(|")docs/', r"\1", readme).partition("\n## ")
        cards, fence, toctree = source[0].partition("```{toctree}")
        source[0] = f"{intro}\n{cards}{heading}{rest}\n{fence}{toctree}"
    folder = (Path(app.srcdir) / document).parent

    def link(match: re.Match[str]) -> str:
        target = (folder / match["target"]).resolve()
        return match[0] if target.is_file() and target.is_relative_to(app.srcdir) else match["text"]

    source[0] = re.sub(r"\[(?P<text>[^]\[]+)\]\((?P<target>[^)#\s:]+)(?:#[^)\s]*)?\)", link, source[0])


def _plots(app: Sphinx, failure: Exception | None) -> None:
    """Copy the plots, which pages show by their own HTML."""
    if failure is None:
        shutil.copytree(ROOT / "docs" / "plots", Path(app.outdir) / "plots", dirs_exist_ok=True)


def setup(app: Sphinx) -> None:
    """Connect both."""
    app.connect("source-read", _source)
    app.connect("build-finished", _plots)
