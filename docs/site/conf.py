"""Sphinx configuration of the site that `scripts/docs` builds of all documents of this repository."""

from sphinx.application import Sphinx

project = "SIE on Triton"
author = "the SIE on Triton contributors"

# Paths are relative to the repository, the source directory.
root_doc = "README"
include_patterns = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/**.md",
]

extensions = ["myst_parser", "sphinxcontrib.mermaid"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = project

# Pages by their section of the navigation.
CONTENTS = {
    "Use": "installation serving-models encode score extract images loras door integrations migrating-from-sie "
    "coming-from-tei coming-from-triton features",
    "Operate": "operating cluster kubernetes upgrades observability settings tuning eval "
    "failures security troubleshooting gpu",
    "Reference": "client parameters model-files models engines performance",
    "Inside": "/ARCHITECTURE decisions/README /CONTRIBUTING /CHANGELOG",
}
TOCTREE = """
```{{toctree}}
:hidden:
:caption: {title}
:maxdepth: 1

{pages}
```
"""
LISTED = {"docs/decisions/README": "docs/decisions", "docs/performance": "docs/benchmarks"}


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the navigation to README, and to overview pages that of the folder they describe; name printed reports."""
    if page.startswith("docs/benchmarks/") and not source[0].startswith("# "):
        source[0] = f"# {page.rpartition('/')[2]}\n\n{source[0]}"
    if page == root_doc:
        for title, names in CONTENTS.items():
            pages = "\n".join(name if name.startswith("/") else f"/docs/{name}" for name in names.split())
            source[0] += TOCTREE.format(title=title, pages=pages)
    elif page in LISTED:
        names = sorted(each for each in app.project.docnames if each.startswith(f"{LISTED[page]}/") and each != page)
        source[0] += TOCTREE.format(title="Pages", pages="\n".join(f"/{name}" for name in names))


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_contents)
