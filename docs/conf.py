"""The documentation site: ``make docs`` builds it from these pages with Sphinx and MyST."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

project = "tablestore"
author = "the tablestore authors"
release = version = version_of("tablestore")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxcontrib.mermaid",
]
exclude_patterns = ["_build"]
nitpicky = False

html_theme = "furo"
html_title = "tablestore"
html_copy_source = False

# The pages are read on the site and as plain Markdown alike: the same anchors, the same ```mermaid blocks.
myst_enable_extensions = ["colon_fence"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "inherited-members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
