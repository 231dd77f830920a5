"""The documentation site: ``make docs`` builds it into build/docs. Warnings are errors."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent / "benchmarks")]

from rl_training.version import __version__  # noqa: E402

project = "rl_training"
author = "the rl_training authors"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "site_inserts", "site_links", "site_math"]
exclude_patterns = ["_*", "charts", "adr/README.md"]
nitpicky = False  # annotations name types of torch, numpy and gymnasium, whose sites are not asked
smartquotes = False  # pages are full of code

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

autodoc_typehints = "none"  # signatures have them
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = f"rl_training {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5f99", "color-brand-content": "#1f5f99"},
    "dark_css_variables": {"color-brand-primary": "#7ab8f0", "color-brand-content": "#7ab8f0"},
}
