"""Maps the broker's errors to HTTP responses: one table of status codes, and a reason in words.

Pulsar's administration clients show the body `{"reason": "..."}` to their users. A retriable error that is not in the
table is answered with 503. Any other error is a bug of the broker. It is answered with 500 without details, and its
traceback goes to the log.
"""

from typing import Final

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from broker.cluster.ownership import OwnedElsewhere
from broker.consumer_reports import NOT_CONTROLLER, InvalidReports, NotController
from broker.errors import (
    BrokerError,
    IncompatibleSchema,
    IntentOpen,
    LayoutError,
    LayoutUnreadable,
    MessageNotFound,
    NamespaceExists,
    NamespaceInUse,
    NamespaceNotFound,
    NotSupported,
    OldClientsConnected,
    OnePartitionOnly,
    RetentionInvalid,
    SchemaNotFound,
    SubscriptionEnding,
    SubscriptionExists,
    SubscriptionInUse,
    SubscriptionNotFound,
    TooFewPartitions,
    TopicClosed,
    TopicExists,
    TopicInUse,
    TopicNotFound,
    TransactionsOpen,
    UnknownSegment,
    sentences,
)
from broker.handover import NoSuchBroker, NotOwned
from broker.http.parameters import check_path
from broker.http.resources import Resource
from broker.names import InvalidTopicName
from broker.peers import PeerRefused, PeerSilent
from storage.cursor import CursorError
from storage.errors import ExpectedError, LedgerFailed
from txn.errors import CoordinatorNotFound, InvalidTxnStatus, TransactionNotFound

NOT_FOUND: Final = 404
_ALL_CALLS: Final = "Check the method and the path: /docs lists all calls."

STATUS_CODES: Final[dict[type[Exception], int]] = {
    InvalidTopicName: 412,
    TopicNotFound: 404,
    SubscriptionNotFound: 404,
    SchemaNotFound: 404,
    MessageNotFound: 404,
    UnknownSegment: 404,
    TopicExists: 409,
    SubscriptionExists: 409,
    IncompatibleSchema: 409,
    SubscriptionEnding: 409,
    SubscriptionInUse: 412,
    # Another split or merge is in progress. Unlike the other refusals of layouts, this one passes by itself.
    IntentOpen: 409,
    LayoutError: 412,
    LayoutUnreadable: 500,
    NamespaceNotFound: 404,
    NamespaceExists: 409,
    NamespaceInUse: 409,
    RetentionInvalid: 412,
    TopicInUse: 412,
    OnePartitionOnly: 405,
    TooFewPartitions: 409,
    OldClientsConnected: 409,
    TransactionsOpen: 409,
    NotSupported: 501,
    InvalidReports: 400,
    NotController: NOT_CONTROLLER,
    # Another broker owns the topic, or it is moving between brokers. A retry may succeed later, or at that broker.
    TopicClosed: 503,
    OwnedElsewhere: 503,
    CursorError: 503,
    # The broker stops in the middle of the change. The next owner continues it.
    LedgerFailed: 503,
    TransactionNotFound: 404,
    CoordinatorNotFound: 404,
    # The opposite was decided first.
    InvalidTxnStatus: 409,
    NotOwned: 409,
    NoSuchBroker: 412,
    PeerSilent: 503,
    BrokerError: 500,
}
"""The most specific base class of an error in this table decides."""


def refusal(status_code: int, reason: str) -> Response:
    """Return a response that gives the reason of a refusal."""
    return json_response({"reason": reason}, status_code)


def done() -> Response:
    """Return the response to a successful change."""
    return Response(status_code=204)


def json_response(content: object, status_code: int = 200) -> Response:
    """Return a response in JSON."""
    return Response(orjson.dumps(content), status_code, media_type="application/json")


def exception_handlers() -> dict[object, ExceptionHandler]:
    """Return Starlette's handlers for the exceptions that routes raise."""
    expected: dict[object, ExceptionHandler] = dict.fromkeys((*STATUS_CODES, ExpectedError), refuse)
    return {**expected, HTTPException: _refuse_http, ClientDisconnect: _gone, Exception: _fail}


async def refuse(_request: Request, error: Exception) -> Response:
    """Answer an error that requests are expected to meet.

    Raises:
        Exception: the error, if it is not expected here.
    """
    if isinstance(error, PeerRefused):
        return refusal(error.status_code, str(error))
    for kind in type(error).__mro__:
        if kind in STATUS_CODES:
            return refusal(STATUS_CODES[kind], sentences(error))
    if isinstance(error, ExpectedError) and error.retriable:
        return refusal(503, sentences(error))
    # The error is unexpected here: `_fail` answers it, and the log gets its traceback.
    raise error


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason = error.detail
    if error.status_code == NOT_FOUND and b"/subscription" not in request.scope["raw_path"]:
        # Perhaps a name has a slash, so that the path has more parts than was meant.
        try:
            check_path(request)
        except InvalidTopicName as invalid:
            return await refuse(request, invalid)
    if error.status_code in {NOT_FOUND, 405}:
        reason = f"This broker does not serve {request.method} {request.url.path}. {_hint(request)}"
    response = refusal(error.status_code, reason)
    response.headers.update(error.headers or {})
    return response


def _hint(request: Request) -> str:
    """What to try in place of a path, or a method of a path, that is not served."""
    resource = request.scope.get("endpoint")
    if not isinstance(resource, Resource):
        return _ALL_CALLS
    below = resource.below.get(request.method, ())
    if below:
        return f"Below that path it serves {request.method} at {', '.join(sorted(below))}."
    served = sorted(method for method, call in resource.calls.items() if call.is_served)
    return f"It serves {', '.join(served)} there." if served else _ALL_CALLS


async def _gone(_request: Request, _error: Exception) -> Response:
    # Often the client has left. A client that stalled, or sent an invalid end, can still read the answer.
    return refusal(400, "The request ended before its body was complete. Send it again.")


async def _fail(_request: Request, _error: Exception) -> Response:
    return refusal(500, "The broker failed to handle this request. Its log says why.")
