"""
Check a built site: every link leads somewhere, and no page fetches anything from elsewhere.

`make docs` runs it.  Links to other sites are not followed: that would need the network.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final
from urllib.parse import unquote
from urllib.parse import urldefrag


if TYPE_CHECKING:
    from collections.abc import Iterator

_ELSEWHERE: Final = re.compile(r"(?:\w+:)?//|mailto:")
_STYLE: Final = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(HTMLParser):
    """
    What a page names.

    Attributes:
        anchors: the places in it that a link may name.
        links: where it leads, when somebody follows them.
        parts: what a browser fetches to show it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.parts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the names and addresses of an element."""
        given = {name: value for name, value in attrs if value is not None}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if "src" in given:
            self.parts.append(given["src"])
        if "href" in given:
            (self.parts if tag == "link" else self.links).append(given["href"])


def problems(site: Path) -> Iterator[str]:
    """Each broken link and foreign part of a site, as ``page: what``."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site} has no pages: `make docs` builds them"
    for path, page in pages.items():
        where = path.relative_to(site)
        yield from (f"{where}: fetches {part}" for part in page.parts if _ELSEWHERE.match(part))
        for link in (link for link in page.links + page.parts if not _ELSEWHERE.match(link)):
            target, anchor = urldefrag(link)
            found = (path.parent / unquote(target.partition("?")[0])).resolve() if target else path
            if not found.is_file():
                yield f"{where}: no file {link}"
            elif anchor and found in pages and unquote(anchor) not in pages[found].anchors:
                yield f"{where}: no anchor {link}"
    for path in sorted(site.rglob("*.css")):
        for names in _STYLE.findall(path.read_text(encoding="utf-8")):
            if _ELSEWHERE.match(name := "".join(names)):
                yield f"{path.relative_to(site)}: fetches {name}"


if __name__ == "__main__":
    sys.exit("\n".join(problems(Path(sys.argv[1]).resolve())) or 0)
