"""Ends the transactions that are open on a broker, as an administrator would: it lists them and aborts each.

The list is the index of open transactions in the broker's metadata, which its HTTP listener shows. The abort is a
client's own request. So the coordinator decides, and a commit that comes first stays.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Final
from urllib.parse import urlsplit

import anyio

import tidewire
from tidewire.testing.process import BrokerFailed

ANSWER_SECONDS_MAX: Final = 60.0

_OPEN: Final = "/admin/v2/metadata/index?name=txn-by-deadline"
_KEY_PREFIX: Final = "/txn/id/"
_V5_BIT: Final = 1 << 62
"""Set in the ids that clients have, and not in the keys of records."""


def abort_open_transactions(http: str, pulsar: str) -> int:
    """Abort the transactions that are open now, and return how many were. It is durable on return.

    It may be called where an event loop runs, which it blocks.

    Raises:
        BrokerFailed: the broker did not list them.
        TidewireError: an abort failed.
    """
    found = open_transactions(http)
    if not found:
        return 0
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(anyio.run, _abort, pulsar, found).result()


def open_transactions(http: str) -> list[tuple[int, int]]:
    """Return the ids of the open transactions: the coordinator, and the number there. Raises as above."""
    connection = HTTPConnection(urlsplit(http).netloc, timeout=ANSWER_SECONDS_MAX)
    try:
        connection.request("GET", _OPEN)
        answer = connection.getresponse()
        content = answer.read().decode()
    finally:
        connection.close()
    # An answer that fails after it has begun says so in its last line.
    listed = [json.loads(line) for line in content.splitlines()] if answer.status == HTTPStatus.OK else [{}]
    if not all("key" in record for record in listed):
        raise BrokerFailed(f"The Tidewire broker did not list its open transactions: {content}")
    return [_id_of(record["key"]) for record in listed]


def _id_of(key: str) -> tuple[int, int]:
    coordinator, number = key.removeprefix(_KEY_PREFIX).split("_")
    return int(coordinator), int(number) | _V5_BIT


async def _abort(pulsar: str, transactions: list[tuple[int, int]]) -> int:
    aborted = 0
    async with tidewire.connect(pulsar) as client:
        for transaction in transactions:
            try:
                await client.join_transaction(transaction).abort()
            except (tidewire.TransactionConflict, tidewire.TransactionNotFound):
                # Its client committed it meanwhile.
                continue
            aborted += 1
    return aborted
