"""Calls: what the broker serves over HTTP, as tables. Routes and the description at `/openapi.json` come from them.

A path has one route with all its methods. Another method is answered with 405 and a list (RFC 9110, 15.5.6).
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, request_response
from starlette.types import Receive, Scope, Send

from broker.errors import NotSupported

Endpoint = Callable[[Request], Awaitable[Response]]

JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"
TEXT: Final = "text/plain"
BYTES: Final = "application/octet-stream"
HTML: Final = "text/html"


class Parameter(NamedTuple):
    """A parameter in a call's query."""

    name: str
    meaning: str
    type: Literal["string", "integer", "boolean"] = "string"
    is_required: bool = False
    is_list: bool = False
    """Whether it may be given several times."""


@dataclass(frozen=True, slots=True)
class Call:
    """One method of one path."""

    method: str
    path: str
    """With the names of its variable parts in braces."""
    endpoint: Endpoint
    summary: str
    """What it does, in one sentence."""
    answer: str = ""
    """What a success answers; empty for 204, which has no body."""
    parameters: tuple[Parameter, ...] = ()
    body: str = ""
    """What the request's body holds, as JSON; empty if it has none."""
    errors: tuple[int, ...] = ()
    """The refusals that are particular to it. Any call may answer 412, 500 and 503."""
    media_type: str = JSON
    """The type of the answer's body."""
    is_empty_at_times: bool = False
    """Whether it may answer 204 in place of the answer."""
    places: trio.CapacityLimiter | None = None
    """Answers that may be made and sent at the same time, because each holds much memory. Further ones wait."""
    is_served: bool = True
    """Whether the broker does it. Otherwise it answers 501 with the summary."""


@dataclass(frozen=True, slots=True)
class Resource:
    """An ASGI application for one path, with all its methods."""

    calls: Mapping[str, Call] = field(default_factory=lambda: MappingProxyType({}))
    """By method."""
    below: Mapping[str, Sequence[str]] = field(default_factory=lambda: MappingProxyType({}))
    """By method, the names below this path at which the broker serves it. For people who asked one level too high."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. The route has checked the method."""
        method = scope["method"]
        call = self.calls["GET" if method == "HEAD" else method]
        async with call.places or nullcontext():
            await request_response(call.endpoint)(scope, receive, send)


def resources(calls: Iterable[Call]) -> list[BaseRoute]:
    """Make one route for each path, in the order in which the paths first appear.

    The first path that matches and has the method decides. So a fixed path comes before one with a variable part there.
    """
    paths: dict[str, dict[str, Call]] = {}
    for call in calls:
        methods = paths.setdefault(call.path, {})
        assert call.method not in methods, f"{call.method} {call.path} is served twice"
        methods[call.method] = call
    below = _below(paths)
    return [Route(path, Resource(made, below.get(path, {})), methods=list(made)) for path, made in paths.items()]


def _below(paths: Mapping[str, Mapping[str, Call]]) -> dict[str, dict[str, list[str]]]:
    """Return for each path and method the last parts of served paths that have one part more."""
    found: dict[str, dict[str, list[str]]] = {}
    for path, calls in paths.items():
        above, _, name = path.rpartition("/")
        for call in calls.values():
            if call.is_served and "{" not in name:
                found.setdefault(above, {}).setdefault(call.method, []).append(name)
    return found


def refusing(reason: str) -> Endpoint:
    """An endpoint that answers 501 with a reason."""

    async def refuse(_request: Request) -> Response:
        raise NotSupported(reason)

    return refuse
