"""Passes a request on to the broker that owns what it is about. So any broker answers for the whole cluster.

The first broker tries to do it. That fails with `OwnedElsewhere`, which names the owner. The owner's answer goes to the
client. A broker that drains takes nothing new, so it asks the broker that should become the owner. A request is passed
on once: if the ownership moves at that moment, the client is told to ask again.
"""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from broker.administration_contract import ClusterService
from broker.cluster.ownership import BrokerDrains, OwnedElsewhere
from broker.http.refusals import refuse
from broker.http.resources import JSON
from broker.peers import FORWARDED, PeerSilent


def passes_on(service: ClusterService) -> ExceptionHandler:
    """Return Starlette's handler for `OwnedElsewhere`."""

    async def pass_on(request: Request, error: Exception) -> Response:
        assert isinstance(error, OwnedElsewhere)
        to = error.owner
        if isinstance(error, BrokerDrains) and error.topic is not None:
            to = service.taker(error.topic)
        if to is None or FORWARDED in request.headers:
            return await refuse(request, error)
        try:
            answer = await service.pass_on(to, request.method, _target(request), _body(request))
        except PeerSilent as silent:
            return await refuse(request, silent)
        response = Response(answer.body, answer.status_code, media_type=JSON if answer.body else None)
        if answer.headers:
            # Starlette would write their names in small letters, and Pulsar's tools read them as they are.
            replaced = {name.lower() for name, _value in answer.headers}
            kept = [(name, value) for name, value in response.raw_headers if name not in replaced]
            response.raw_headers = [*kept, *answer.headers]
        return response

    return pass_on


def _target(request: Request) -> str:
    """Return the path and the parameters as the client wrote them: the names in a path are quoted."""
    raw_path: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    return (raw_path + b"?" + query if query else raw_path).decode("ascii")


def _body(request: Request) -> bytes:
    """Return the body, if the request was read so far. Of the others, nobody wants the body."""
    body: bytes = getattr(request.state, "body", b"")
    return body
