"""Routes that serve several methods of a path. Another method is answered with 405 and a list (RFC 9110, 15.5.6).

A separate route for each method would not do. Starlette skips a route whose path matches but whose method does not. The
last route matches every path that Pulsar has below a topic, so it would answer 501 instead of 405.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, request_response
from starlette.types import Receive, Scope, Send

Endpoint = Callable[[Request], Awaitable[Response]]


def resources(served: Iterable[tuple[str, str, Endpoint]]) -> list[BaseRoute]:
    """Make one route for each path from (method, path, endpoint), in the order in which the paths first appear."""
    paths: dict[str, dict[str, Endpoint]] = {}
    for method, path, endpoint in served:
        paths.setdefault(path, {})[method] = endpoint
    return [Route(path, _Resource(endpoints)) for path, endpoints in paths.items()]


class _Resource:
    """An ASGI application for one path, with all its methods."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._applications = {method: request_response(endpoint) for method, endpoint in endpoints.items()}
        if "GET" in endpoints:
            self._applications["HEAD"] = self._applications["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        application = self._applications.get(scope["method"])
        if application is None:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(self._applications))})
        await application(scope, receive, send)
