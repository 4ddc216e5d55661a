"""Transactions of scalable topics over HTTP: /admin/v3/transactions, where Pulsar has it.

The list in order of age has no counterpart in Pulsar. Any broker answers for all coordinators. Transactions of Kafka's
clients are not here: Kafka's own tools list and end them.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from broker.http.parameters import number_of, part_number_of
from broker.http.refusals import done, json_response
from broker.http.resources import Call, Parameter, refusing
from storage.entry import TxnId
from storage.position import Position
from txn.inspection import LISTED_MAX, InspectedTransaction, Inspection

PREFIX: Final = "/admin/v3/transactions"
_ID: Final = "/{most}/{least}"
_LOGLESS: Final = "Coordinators here have no log. Look at /transactionMetadata, or list the open transactions."
_BY_TRANSACTION: Final = "Look at the transaction with /transactionMetadata. It names the participants."
_SETTING: Final = (
    "The number of coordinators is a setting. Change --transaction-coordinators and start the brokers again."
)


def calls(inspection: Inspection) -> list[Call]:
    """The calls, answered by `inspection`."""
    admin = _TransactionAdmin(inspection)
    coordinator = Parameter("coordinatorId", "Only transactions of this coordinator.", "integer")
    unserved = [
        ("GET", "/coordinators", _LOGLESS),
        ("GET", "/coordinatorStats", _LOGLESS),
        ("GET", "/coordinatorInternalStats/{coordinator}", _LOGLESS),
        ("GET", "/transactionInBufferStats/{rest:path}", _BY_TRANSACTION),
        ("GET", "/transactionInPendingAckStats/{rest:path}", _BY_TRANSACTION),
        ("GET", "/transactionBufferStats/{rest:path}", _BY_TRANSACTION),
        ("GET", "/transactionBufferInternalStats/{rest:path}", _BY_TRANSACTION),
        ("GET", "/pendingAckStats/{rest:path}", _BY_TRANSACTION),
        ("GET", "/pendingAckInternalStats/{rest:path}", _BY_TRANSACTION),
        ("GET", "/positionStatsInPendingAck/{rest:path}", _BY_TRANSACTION),
        ("POST", "/transactionCoordinator/replicas", _SETTING),
    ]
    return [
        Call(
            *("GET", PREFIX, admin.oldest),
            "List the open transactions with their participants, oldest first.",
            f"A list of transactions, at most {LISTED_MAX}.",
            (Parameter("limit", "At most so many.", "integer"), coordinator),
            errors=(404,),
        ),
        Call(
            *("GET", PREFIX + "/slowTransactions/{age}", admin.slow),
            "Show the transactions that have been open for at least so many milliseconds.",
            "A map from ids to transactions, oldest first.",
            (coordinator,),
            errors=(404,),
        ),
        Call(
            *("GET", PREFIX + "/transactionMetadata" + _ID, admin.show),
            "Show a transaction that is open, or ended not long ago.",
            "The transaction with its participants.",
            errors=(404,),
        ),
        Call(
            *("POST", PREFIX + "/abortTransaction" + _ID, admin.abort),
            "Abort an open transaction. A committed one is refused.",
            errors=(404, 409),
        ),
        *(Call(method, PREFIX + path, refusing(why), why, is_served=False) for method, path, why in unserved),
    ]


class _TransactionAdmin:
    def __init__(self, inspection: Inspection) -> None:
        self._inspection = inspection

    async def oldest(self, request: Request) -> Response:
        limit, coordinator = number_of(request, "limit"), number_of(request, "coordinatorId")
        found = await self._inspection.open(coordinator=coordinator, limit=LISTED_MAX if limit is None else limit)
        return json_response([_view(one) for one in found])

    async def slow(self, request: Request) -> Response:
        age, coordinator = part_number_of(request, "age"), number_of(request, "coordinatorId")
        found = await self._inspection.open(age_ms_min=age, coordinator=coordinator)
        return json_response({_text(one.txn): _view(one) for one in found})

    async def show(self, request: Request) -> Response:
        return json_response(_view(await self._inspection.find(_id_of(request))))

    async def abort(self, request: Request) -> Response:
        await self._inspection.abort(_id_of(request))
        return done()


def _id_of(request: Request) -> TxnId:
    return TxnId(part_number_of(request, "most"), part_number_of(request, "least"))


def _text(txn: TxnId) -> str:
    return f"({txn.most},{txn.least})"


def _view(one: InspectedTransaction) -> dict[str, object]:
    """A transaction in JSON: Pulsar's fields, and behind them those that Pulsar has not."""
    written: dict[str, object] = {}
    acknowledged: dict[str, dict[str, object]] = {}
    for part in one.participants:
        if part.subscription is None:
            written[part.segment] = {"startPosition": _place(part.position)}
        else:
            position = {} if part.position is None else {"cumulativeAckPosition": _place(part.position)}
            acknowledged.setdefault(part.segment, {})[part.subscription] = position
    header = one.header
    return {
        "txnId": _text(one.txn),
        "status": header.state.value,
        "openTimestamp": header.created_ms,
        "timeoutAt": header.timeout_ms,
        "producedPartitions": written,
        "ackedPartitions": acknowledged,
        "endedTimestamp": header.finalized_ms,
        "group": None if header.group is None else header.group._asdict(),
        "unreadableRecords": one.unreadable,
    }


def _place(position: Position | None) -> str | None:
    return None if position is None else f"{position.ledger}:{position.entry}"
