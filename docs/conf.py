"""The site, which ``make docs`` builds: the pages of docs/, the README in front, and the interface from docstrings."""

import os
import re
import shutil
from functools import partial
from pathlib import Path

from sphinx.application import Sphinx

import gemmule

DOCS = Path(__file__).parent
ROOT = DOCS.parent
GENERATED = DOCS / "reference" / "generated" / "files"
LINK = re.compile(r"\[(?P<text>[^]\[]+)\]\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")
PICTURE = re.compile(r'<picture>\n<source [^>]*srcset="([^"]+)">\n<img alt="([^"]+)" src="([^"]+)">\n</picture>')
#: As the theme's switch has it, not as the system.
PLOT = r'<div class="plot"><img class="only-light" loading="lazy" alt="\2" src="\3">' + (
    r'<img class="only-dark" loading="lazy" alt="\2" src="\1"></div>'
)
LANGUAGES = {".py": "python", ".cu": "c++", ".yml": "yaml", ".cff": "yaml"}

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
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb", ".myst": "myst-nb"}
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
html_copy_source = False
html_sidebars = {page: [] for page in ("index", "start", "gpus", "speed", "reference/generated/files/**")}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"show_toc_level": 2, "header_links_before_dropdown": 6, "footer_end": [], "navbar_align": "left"}


def _linked() -> dict[Path, Path]:
    """Return the page of each file outside of docs/ that a page links to; a folder has one that lists its files."""
    files = set()
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for match in LINK.finditer(page.read_text(encoding="utf-8")):
            path = (page.parent / match["target"]).resolve()
            if path.exists() and not path.is_relative_to(DOCS) and path.suffix != ".jsonl":
                files |= {path, *(path.glob("*.*") if path.is_dir() else ())}
    return {path: GENERATED / f"{path.relative_to(ROOT).as_posix().lstrip('.')}.myst" for path in sorted(files)}


def _link(match: re.Match[str], folder: Path, document: Path) -> str:
    """Return a link of a text in a folder, as a document of the site has it: the text alone where there is no page."""
    path = (folder / match["target"]).resolve()
    page = FILES.get(path, DOCS / "background.md" if path == DOCS / "decisions" else path)
    if not page.is_relative_to(DOCS) or not (page.is_file() or path in FILES):
        return match["text"]
    return f"[{match['text']}]({os.path.relpath(page, document.parent)}{match['anchor'] or ''})"


def _summary(file: Path) -> str:
    """Return what the docstring of a Python file says in its first line."""
    return file.read_text(encoding="utf-8").splitlines()[0].strip('"') if file.suffix == ".py" else ""


def _files(_app: Sphinx) -> None:
    """Write the pages of files outside of docs/, before the pages are found."""
    for path, page in FILES.items():
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".md":
            text = LINK.sub(partial(_link, folder=path.parent, document=page), path.read_text(encoding="utf-8"))
        elif path.is_dir():
            files = sorted(path.glob("*.*"))
            rows = [f"[{file.name}]({os.path.relpath(FILES[file], page.parent)}) | {_summary(file)}" for file in files]
            text = f"# {name}\n\n| file | |\n| --- | --- |\n" + "\n".join(f"| {row} |" for row in rows)
        else:
            language = LANGUAGES.get(path.suffix, "text")
            shown = os.path.relpath(path, page.parent)
            text = f"# {name}\n\n```{{literalinclude}} {shown}\n:language: {language}\n```"
        text = f"---\norphan: true\nnosearch: true\n---\n\n{text}\n"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")


def _source(_app: Sphinx, document: str, source: list[str]) -> None:
    """Put the README around the cards of the first page; links and pictures become those of the site."""
    if document == "index":
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        readme = re.sub(r"\]\((?!docs/|https?:)", "](../", readme)
        intro, heading, rest = re.sub(r'(\]\(|")docs/', r"\1", readme).partition("\n## ")
        cards, fence, toctree = source[0].partition("```{toctree}")
        source[0] = f"{intro}\n{cards}{heading}{rest}\n{fence}{toctree}"
    page = DOCS / f"{document}.md"
    if not page.is_relative_to(GENERATED):
        source[0] = LINK.sub(partial(_link, folder=page.parent, document=page), PICTURE.sub(PLOT, source[0]))


def _plots(app: Sphinx, failure: Exception | None) -> None:
    """Copy the plots, which pages show by their own HTML."""
    if failure is None:
        shutil.copytree(DOCS / "plots", Path(app.outdir) / "plots", dirs_exist_ok=True)
        for source_map in Path(app.outdir, "_static").rglob("*.map"):
            source_map.unlink()


FILES = _linked()


def setup(app: Sphinx) -> None:
    """Connect them."""
    app.connect("builder-inited", _files)
    app.connect("source-read", _source)
    app.connect("build-finished", _plots)
