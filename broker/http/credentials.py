"""Refuses HTTP requests with credentials: the broker does not check them, so it must not seem to accept them."""

from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from broker.http.refusals import refusal

_REASON: Final = (
    "This broker does not check credentials, so it refuses them. Leave the Authorization header out, or use a proxy "
    "that checks and removes it."
)


class NoCredentials:
    """ASGI middleware: answers 403 to requests with an Authorization header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http" and "authorization" in Headers(scope=scope):
            # Not 401: that asks for other credentials, so a browser would prompt its user.
            await refusal(403, _REASON)(scope, receive, send)
            return
        await self._app(scope, receive, send)
