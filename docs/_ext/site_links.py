"""Checks the finished site: every link inside it leads somewhere, and no page asks another server for anything."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from sphinx.application import Sphinx

#: Elements whose addresses a browser follows by itself, each with the attribute that holds the address.
LOADED = {"audio": "src", "iframe": "src", "img": "src", "link": "href", "script": "src", "source": "src", "video": "src"}


class Page(HTMLParser):
    """What a page links to, what it loads, and the places in it that others can link to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag in LOADED and LOADED[tag] in given:
            self.loaded.append(given[LOADED[tag]])
        elif "href" in given:
            self.links.append(given["href"])


def problems(site: Path) -> Iterator[str]:
    """A sentence for everything that is wrong with the links of a site."""
    pages = {path.resolve(): Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        for address in page.loaded:
            if urlsplit(address).netloc:
                yield f"{name} loads {address} from another server"
        for link in dict.fromkeys((*page.links, *page.loaded)):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                yield f"{name} links to {link}, which does not exist"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places:
                yield f"{name} links to {link}, and that page has no such place"


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects to the end of a build; what is wrong is a warning, and so an error with ``-W``."""
    from sphinx.util import logging

    def finished(app: Sphinx, error: Exception | None) -> None:
        if error is None and app.builder.name == "html":
            for problem in problems(Path(app.outdir)):
                logging.getLogger(__name__).warning(problem)

    app.connect("build-finished", finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
