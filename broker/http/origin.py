"""Keeps web pages from administering the broker through their visitors' browsers.

A broker on a laptop trusts whoever reaches its port, and a browser reaches it for any page it shows: a form may POST
across sites without asking. Browsers say where such a request comes from, and it is refused unless that is the broker
itself. Programs other than browsers send no Origin and are not concerned.
"""

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from broker.http.refusals import refusal

_HARMLESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class SameOriginOnly:
    """ASGI middleware: answers 403 to what another site's page asks a browser to change."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http" and scope["method"] not in _HARMLESS:
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            if origin is not None and not _is_same(origin, headers.get("host", "")):
                response = refusal(403, f"A page of {origin} may not administer this broker.")
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_same(origin: str, host: str) -> bool:
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
