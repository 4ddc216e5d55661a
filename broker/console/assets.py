"""The console's files, as they are in this package.

    GET /                                the page
    GET /console/assets/{version}/{path} its modules, styles and libraries

The version is a hash of all files. Their addresses contain it, so browsers keep them for good, and a page of one
release never loads a module of another. The page itself is checked at each visit.

Nothing comes from elsewhere: the Content-Security-Policy allows only this broker's files, and no script or style inside
the page. So text that a client put into a name or message cannot become code.
"""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from broker.http.refusals import refusal

PAGE: Final = Path(__file__).with_name("page")
INDEX: Final = "index.html"
VERSION_MARK: Final = b"{{version}}"
"""Stands in the page where the version belongs."""

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_SECURITY: Final = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_FOR_GOOD: Final = "public, max-age=31536000, immutable"


class Assets:
    """The files, read once."""

    def __init__(self, folder: Path = PAGE) -> None:
        """Read all files below `folder`."""
        self._files: Mapping[str, bytes] = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.suffix in _TYPES
        }
        digest = sha256()
        for name, content in self._files.items():
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        self.version = digest.hexdigest()[:16]
        """Changes with every file."""

    def routes(self) -> list[BaseRoute]:
        """The routes above."""
        return [
            Route("/", self._index, methods=["GET"]),
            Route("/console/assets/{version}/{path:path}", self._asset, methods=["GET"]),
        ]

    async def _index(self, request: Request) -> Response:
        tag = f'"{self.version}"'
        headers = {**_SECURITY, "cache-control": "no-cache", "etag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        page = self._files[INDEX].replace(VERSION_MARK, self.version.encode())
        return Response(page, headers=headers, media_type=_TYPES[".html"])

    async def _asset(self, request: Request) -> Response:
        path = request.path_params["path"]
        content = self._files.get(path)
        if content is None or request.path_params["version"] != self.version:
            return refusal(404, "The console has no such file. Reload the page: the broker may have another release.")
        headers = {**_SECURITY, "cache-control": _FOR_GOOD}
        return Response(content, headers=headers, media_type=_TYPES[Path(path).suffix])
