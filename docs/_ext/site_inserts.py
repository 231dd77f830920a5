"""Fills the pages with what the code and the results say, when the site is built.

``<!-- insert: settings dqn -->`` on a line of its own is replaced by the Markdown that the function of that name returns for
``dqn``. Nothing generated is committed. Of the sections that benchmarks write into a page (``<!-- speed: begin -->``), those
that the site has a chart of are folded: the chart first, the table with its many rows behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import site_algorithms
import site_benchmarks
import site_reference
from site_markdown import fold

if TYPE_CHECKING:
    from sphinx.application import Sphinx

INSERT = re.compile(r"^<!-- insert: ([a-z-]+)((?: [\w.]+)*) -->$", re.MULTILINE)
#: sections with a chart before them
SECTION = re.compile(r"^<!-- (speed|learning|profile): begin -->\n(.*?)^<!-- \1: end -->$", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"^!\[[^]]*\]\([^)]*\)$", re.MULTILINE)

INSERTS: dict[str, Callable[..., str]] = {
    "agents": site_reference.agents,
    "algorithms": site_algorithms.overview,
    "api": site_reference.api,
    "cli": site_reference.command_line,
    "configs": site_algorithms.configs,
    "errors": site_reference.errors,
    "facts": site_algorithms.facts,
    "learning-chart": site_benchmarks.learning_chart,
    "profile-chart": site_benchmarks.profile_chart,
    "run-settings": site_reference.run_settings,
    "settings": site_algorithms.settings,
    "speed-chart": site_benchmarks.speed_chart,
    "wrappers": site_reference.wrappers,
}


def expanded(source: str) -> str:
    """A page with its inserts filled in and its generated sections folded."""
    folded = SECTION.sub(_folded, source)
    return INSERT.sub(lambda found: INSERTS[found[1]](*found[2].split()), folded)


def _folded(section: re.Match[str]) -> str:
    """A generated section behind a line to click on, without its image, which the chart replaces."""
    return fold("All figures as a table", IMAGE.sub("", section[2]).strip())


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects to the reading of pages."""

    def read(app: Sphinx, docname: str, source: list[str]) -> None:
        source[0] = expanded(source[0])

    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
