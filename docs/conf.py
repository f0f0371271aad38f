"""
The docs site: `make docs` builds it with Sphinx into build/site/.

Its sources are the repository's own Markdown files, where they lie: what a link between pages
means on the site is what it means in the repository.  Nothing is fetched to read it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from typing import Any
from typing import Final


if TYPE_CHECKING:
    from sphinx.application import Sphinx

NAVIGATION: Final = {
    "Start": [
        "docs/llm",
        "docs/models",
        "docs/sd",
        "docs/serving",
        "docs/cpu-native",
        "docs/rocm",
        "docs/rocm-blas",
        "docs/rocm-miopen",
        "docs/tuning",
        "docs/flash-attention",
    ],
    "Use": ["docs/tensors", "docs/plugins", "docs/drift", "docs/reporting", "models/*/README"],
    "Plugins": [
        "docs/plugins/README",
        "docs/plugins/tutorial",
        "docs/plugins/reference",
        "docs/plugins/testing",
        "docs/plugins/api-levels",
        "docs/extending",
        "docs/kernels",
        "plugins/*/README",
    ],
    "Reference": [
        "docs/cli",
        "docs/configuration",
        "docs/logging",
        "docs/op-matrix",
        "docs/reports/*",
        "docs/benchmarks/*",
    ],
    "Project": [
        "docs/architecture",
        "tools/hipsim/README",
        "CONTRIBUTING",
        "SECURITY",
        "docs/releasing",
        "CHANGELOG",
    ],
}
"""The pages of each section, after the first page, which is the README."""

project = "Propolis"
copyright = "the authors of Propolis, Apache-2.0"  # noqa: A001  (Sphinx's name for it)
root_doc = "README"
extensions = ["myst_parser"]
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/**/*.md",
    "models/*/README.md",
    "plugins/*/README.md",
    "tools/hipsim/README.md",
]
exclude_patterns = [".*", "build", "core", "dist", "tests", "workers"]  # not to be walked through
myst_heading_anchors = 4  # as the hosting platform makes them
nitpicky = True
smartquotes = False  # what is quoted may be typed

html_theme = "furo"
html_title = "Propolis"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "index.html"}
templates_path = ["site"]
html_copy_source = False
html_use_index = False
html_show_sphinx = False


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Leave out what generated a page, and give the first one the navigation."""
    source[0] = re.sub(r"^<!-- \[\[\[.*?\]\]\] -->$", "", source[0], flags=re.DOTALL | re.MULTILINE)
    if page == root_doc:
        for section, pages in NAVIGATION.items():
            first = "Overview <self>\n" if section == "Start" else ""
            listed = "\n".join(f"/{entry}" for entry in pages)
            options = f":hidden:\n:glob:\n:caption: {section}"
            source[0] += f"\n```{{toctree}}\n{options}\n\n{first}{listed}\n```\n"


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx asks for it."""
    app.connect("source-read", add_navigation)
    return {"parallel_read_safe": True}
