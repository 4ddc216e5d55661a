"""How the rooms' errors read in HTTP: one table of status codes, and a reason in words.

The body `{"reason": "..."}` is what Pulsar's clients for administrators show to their users.
An error that is not in the table answers 503 if it is retriable. Any other error is a fault of ours: it answers 500
without details, and its traceback goes to the log.
"""

from typing import Final

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from broker.cluster.ownership import OwnedElsewhere
from broker.errors import (
    BrokerError,
    IntentOpen,
    LayoutError,
    LayoutUnreadable,
    NotSupported,
    OldClientsConnected,
    RetentionInvalid,
    SubscriptionEnding,
    SubscriptionExists,
    SubscriptionInUse,
    SubscriptionNotFound,
    TopicClosed,
    TopicExists,
    TopicInUse,
    TopicNotFound,
    UnknownSegment,
)
from broker.names import InvalidTopicName
from storage.cursor import CursorError
from storage.errors import ExpectedError, LedgerFailed

STATUS_CODES: Final[dict[type[Exception], int]] = {
    InvalidTopicName: 412,
    TopicNotFound: 404,
    SubscriptionNotFound: 404,
    UnknownSegment: 404,
    TopicExists: 409,
    SubscriptionExists: 409,
    SubscriptionEnding: 409,
    SubscriptionInUse: 412,
    # Another split or merge is in the way; unlike the other refusals of layouts it passes by itself.
    IntentOpen: 409,
    LayoutError: 412,
    LayoutUnreadable: 500,
    RetentionInvalid: 412,
    TopicInUse: 412,
    OldClientsConnected: 409,
    NotSupported: 501,
    # Another broker has it, or it is on its way from one to another: the same request may succeed later, or there.
    TopicClosed: 503,
    OwnedElsewhere: 503,
    CursorError: 503,
    # The broker stops in the middle of the change. The next owner goes on with it.
    LedgerFailed: 503,
    BrokerError: 500,
}
"""The nearest of an error's base classes decides."""


def refusal(status_code: int, reason: str) -> Response:
    """An answer that says why not."""
    return json_response({"reason": reason}, status_code)


def done() -> Response:
    """The answer to a change that was made."""
    return Response(status_code=204)


def json_response(content: object, status_code: int = 200) -> Response:
    """An answer in JSON."""
    return Response(orjson.dumps(content), status_code, media_type="application/json")


def exception_handlers() -> dict[object, ExceptionHandler]:
    """For Starlette: what becomes of each kind of exception that a route raises."""
    expected: dict[object, ExceptionHandler] = dict.fromkeys((*STATUS_CODES, ExpectedError), _refuse)
    return {**expected, HTTPException: _refuse_http, ClientDisconnect: _gone, Exception: _fail}


async def _refuse(_request: Request, error: Exception) -> Response:
    for kind in type(error).__mro__:
        if kind in STATUS_CODES:
            return refusal(STATUS_CODES[kind], str(error))
    if isinstance(error, ExpectedError) and error.retriable:
        return refusal(503, str(error))
    # Not expected here: `_fail` answers, and the log has its traceback.
    raise error


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason = error.detail
    if error.status_code in {404, 405}:
        reason = f"There is no {request.method} {request.url.path} here."
    response = refusal(error.status_code, reason)
    response.headers.update(error.headers or {})
    return response


async def _gone(_request: Request, _error: Exception) -> Response:
    # Often nobody is there to read it; a client that stalled, or sent no proper end, is.
    return refusal(400, "The request was not sent to its end.")


async def _fail(_request: Request, _error: Exception) -> Response:
    return refusal(500, "The broker failed to handle this request; its log says why.")
