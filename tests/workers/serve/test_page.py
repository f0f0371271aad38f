"""The page for people as it is served: its files, their headers, and who may have them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from propolis_workers.serve import page


STATIC = Path(page.__file__).with_name("static")
BARE = {"Authorization": ""}


def test_the_page(server):
    """It is there, is asked for anew each time, and sent again only where it changed."""
    got = server.http.get("/")
    assert got.status_code == 200
    assert got.text == (STATIC / "index.html").read_text()
    assert got.headers["content-type"] == "text/html; charset=utf-8"
    assert got.headers["cache-control"] == "no-cache"
    tag = got.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        same = server.http.get("/", headers={"If-None-Match": known})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    assert server.http.get("/", headers={"If-None-Match": '"other"'}).status_code == 200
    head = server.http.head("/")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("path", sorted(page.PATHS))
def test_what_browsers_are_told(server, path):
    """Every file says what it is, and that nothing but the server's own is loaded or run."""
    headers = server.http.get(path).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert not re.search("unsafe|http|[*]", headers["content-security-policy"])
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert not [name for name in headers if name.startswith("access-control-")]


def test_all_of_it_is_served():
    """What the page and its scripts name is there, all that is there is named, and nothing else."""
    html = (STATIC / "index.html").read_text()
    named = set(re.findall(r'(?:href|src)="(static/[^"]+)"', html))
    for script in STATIC.glob("*.js"):
        named |= {f"static/{one}" for one in re.findall(r'from "\./(.+?)"', script.read_text())}
    assert {f"/{one}" for one in named} | {"/"} == page.PATHS
    for file in STATIC.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z]+\.|innerHTML|eval\(|style=|\son\w+=", text), file


def test_it_needs_no_token(serving):
    """The page asks for the token, so it is shown without one; the API is not."""
    server = serving(token="secret")
    for path in page.PATHS:
        assert server.http.get(path, headers=BARE).status_code == 200
    for path in ("/info", "/v1/models", "/static", "/static/", "/static/none.js"):
        assert server.http.get(path, headers=BARE).status_code == 401, path
    assert server.http.get("/static/none.js").status_code == 404
    assert server.http.post("/", headers=BARE).status_code == 405


def test_it_is_no_part_of_the_api(server):
    """OpenAPI describes what programs ask."""
    assert not page.PATHS & set(server.http.get("/openapi.json").json()["paths"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_docs_show_it(scheme):
    """The docs' images of it are there, small, and made by a script (`make page-images`)."""
    root = Path(__file__).parents[3]
    assert (root / f"docs/images/page-{scheme}.png").stat().st_size < 150_000
    assert f"(images/page-{scheme}.png)" in (root / "docs/serving.md").read_text()
