"""Refuses credentials in HTTP requests: nobody here checks them, so nobody may believe that they count."""

from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from broker.http.refusals import refusal

_REASON: Final = (
    "This broker does not check credentials, and so it takes none. Leave the Authorization header out, or use a proxy "
    "that checks it and does not pass it on."
)


class NoCredentials:
    """ASGI middleware: answers 403 to requests with an Authorization header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http" and "authorization" in Headers(scope=scope):
            # Not 401: that would ask for other credentials, and a browser would ask its user.
            await refusal(403, _REASON)(scope, receive, send)
            return
        await self._app(scope, receive, send)
