"""
The page for people: what a browser shows at ``/``.

Its files lie beside this one, in ``static``; they are read once, as they never change while the
server runs, and the browser asks each time whether its copy is still the right one.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Final
from typing import NamedTuple

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi import Response


# The page's own files alone; what models say can only ever be text.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_TYPES: Final = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


class _File(NamedTuple):
    """A file of the page: its bytes, and what is said of them."""

    content: bytes
    headers: dict[str, str]


def _read() -> dict[str, _File]:
    """The files, each by its path on the server."""
    files = {}
    for entry in resources.files(__package__).joinpath("static").iterdir():
        kind = _TYPES.get(entry.name.rpartition(".")[2])
        if kind is None:
            continue  # as an editor's copy
        content = entry.read_bytes()
        tag = hashlib.sha256(content).hexdigest()[:32]
        headers = {**_HEADERS, "ETag": f'"{tag}"', "Content-Type": f"{kind}; charset=utf-8"}
        path = "/" if entry.name == "index.html" else f"/static/{entry.name}"
        files[path] = _File(content, headers)
    return files


_FILES: Final = _read()
PATHS: Final = frozenset(_FILES)
"""Of the page and its files, which need no token."""


def routes() -> APIRouter:
    """The routes; no part of the API."""
    router = APIRouter()

    async def file(http: HttpRequest) -> Response:
        found = _FILES[http.url.path]
        held = http.headers.get("if-none-match", "").replace("W/", "").split(",")
        if found.headers["ETag"] in map(str.strip, held):
            return Response(status_code=304, headers=found.headers)
        return Response(found.content, headers=found.headers)

    for path in sorted(PATHS):
        router.add_api_route(path, file, methods=["GET", "HEAD"], include_in_schema=False)
    return router


__all__ = ["PATHS", "POLICY", "routes"]
