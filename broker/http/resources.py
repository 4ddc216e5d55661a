"""A path with the methods it has: any other is answered 405 and told which there are (RFC 9110, 15.5.6).

A route for each method would not do. One that has the path and not the method is passed over for the next that has
both, and what follows the served paths takes whatever Pulsar has below a topic: it would say that there is none.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, request_response
from starlette.types import Receive, Scope, Send

Endpoint = Callable[[Request], Awaitable[Response]]


def resources(served: Iterable[tuple[str, str, Endpoint]]) -> list[BaseRoute]:
    """Routes of (method, path, what answers it), one for each path, in the order in which the paths come first."""
    paths: dict[str, dict[str, Endpoint]] = {}
    for method, path, endpoint in served:
        paths.setdefault(path, {})[method] = endpoint
    return [Route(path, _Resource(endpoints)) for path, endpoints in paths.items()]


class _Resource:
    """An ASGI application, which a route gives every method to."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._applications = {method: request_response(endpoint) for method, endpoint in endpoints.items()}
        if "GET" in endpoints:
            self._applications["HEAD"] = self._applications["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        application = self._applications.get(scope["method"])
        if application is None:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(self._applications))})
        await application(scope, receive, send)
