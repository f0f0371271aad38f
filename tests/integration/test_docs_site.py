"""The docs site has every page, and the check of its links finds what it is there to find."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
NAVIGATION = runpy.run_path(str(ROOT / "docs/conf.py"))["NAVIGATION"]


def test_every_page_is_in_the_navigation() -> None:
    """Each page of docs/ and at the top is in one section, once; each entry names a page."""
    entries = [entry for section in NAVIGATION.values() for entry in section]
    listed = {entry: sorted(ROOT.glob(f"{entry}.md")) for entry in entries}
    assert not [entry for entry, pages in listed.items() if not pages]
    pages = [page for found in listed.values() for page in found]
    assert len(set(pages)) == len(pages)
    expected = {*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")} - {ROOT / "README.md"}
    assert set() == expected - set(pages)
    assert ["Start", "Use", "Plugins", "Reference", "Project"] == list(NAVIGATION)


GOOD = {
    "index.html": '<h1 id="top"></h1><a href="sub/page.html#a%20b">x</a><img src="a.png">',
    "sub/page.html": '<p id="a b"></p><a href="../index.html">x</a> <a href="#a b">x</a>'
    '<a href="https://example.org/gone">elsewhere</a><a href="mailto:x@example.org">x</a>',
    "a.png": "",
    "site.css": "p { background: url(a.png) } b { background: url('data:image/png;base64,') }",
}


@pytest.fixture
def problems(tool, tmp_path):
    """Write a site, some files of it replaced; what is wrong with it."""

    def check(**changed: str) -> list[str]:
        for name, text in {**GOOD, **changed}.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return list(tool("site_links").problems(tmp_path))

    return check


def test_a_sound_site(problems) -> None:
    """Files, anchors, data and links to other sites are as they should be."""
    assert [] == problems()


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ('<a href="gone.html">x</a>', "no file gone.html"),
        ('<a href="sub">x</a>', "no file sub"),
        ('<img src="gone.png">', "no file gone.png"),
        ('<a href="#gone">x</a>', "no anchor #gone"),
        ('<a href="sub/page.html#gone">x</a>', "no anchor sub/page.html#gone"),
        ('<link href="https://fonts.example/x.css">', "fetches https://fonts.example/x.css"),
        ('<script src="//cdn.example/x.js"></script>', "fetches //cdn.example/x.js"),
        ('<img src="http://badges.example/x.svg">', "fetches http://badges.example/x.svg"),
    ],
)
def test_what_is_wrong_with_a_page(problems, page, found) -> None:
    """A link to nowhere, and what a browser would fetch from another site, are found."""
    assert [f"new.html: {found}"] == problems(**{"new.html": page})


@pytest.mark.parametrize("style", ["url(https://fonts.example/a)", "@import '//fonts.example/a'"])
def test_styles_fetch_nothing(problems, style) -> None:
    """Neither fonts nor other styles come from elsewhere."""
    (found,) = problems(**{"site.css": style})
    assert found.startswith("site.css: fetches ")


def test_an_empty_site(tool, tmp_path) -> None:
    """A site without pages is not a sound one."""
    assert 1 == len(list(tool("site_links").problems(tmp_path)))
