"""Sphinx configuration of the documentation; ``make docs`` builds it, and warnings are errors."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE / "_ext"), str(ROOT / "src")]

from userdp.version import __version__  # noqa: E402  (found on the path above)

project = "userdp"
author = "the userdp authors"
project_copyright = author
release = version = __version__
language = "en"
smartquotes = False  # options begin with two hyphens

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "myst_nb",
    "command_reference",
    "api_reference",
    "repository_links",
]
exclude_patterns = ["_ext", "_generated/**/*.tmp", "README.md", "results/papers/base"]
nitpicky = True
# Types in signatures: of other libraries (their inventories would be fetched from the network), and
# of ours that no page describes. Links that people wrote are of other kinds, and all are checked.
nitpick_ignore_regex = [("py:.*", ".*")]
suppress_warnings = ["ref.python"]  # shapes such as (users,) that look like names

html_theme = "furo"
html_title = "userdp"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}

# Formulas on pages are plain text, as in the repository; those of docstrings are drawn by MathJax.
myst_enable_extensions = ["deflist", "attrs_block", "colon_fence"]
myst_heading_anchors = 3

# The notebook is executed when the site is built, so that what it shows is what it does.
nb_execution_mode = "force" if os.environ.get("USERDP_DOCS_NOTEBOOKS", "1") == "1" else "off"
nb_execution_timeout = 600
nb_execution_in_temp = True  # what it writes is no page
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
default_role = "code"

copybutton_exclude = ".linenos, .gp, .go"
linkcheck_timeout = 20
linkcheck_anchors = False
