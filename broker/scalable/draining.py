"""Tells whether a subscription has drained a sealed segment: two records in the metadata store decide.

A segment is drained when it is durably acknowledged up to its sealed end. The record of its managed ledger says whether
it is sealed and where it ends. The cursor's record says what is acknowledged. So no broker has to load the segment, and
it does not matter who owns it (C14).

A record that cannot be read does not count: the segment is not drained, its children wait, and everything else
continues.
"""

from collections.abc import Callable

import structlog

from broker.names import TopicName
from storage.cursor_record import cursor_key, decode
from storage.errors import CursorCorrupt, LedgerListCorrupt
from storage.ledger_list import LedgerList
from storage.ledger_record import ManagedLedgerRecord
from storage.managed_ledger_record import record_key
from storage.metadata.store import KeyWatch, MetadataStore, Record

log = structlog.get_logger(__name__)


def sealed_ledgers(managed_ledger: Record | None) -> LedgerList | None:
    """Return the ledgers of a sealed segment, by the record of its managed ledger; None if it is not sealed."""
    if managed_ledger is None:
        return None
    try:
        record = ManagedLedgerRecord.decode(managed_ledger.value)
    except LedgerListCorrupt as corrupt:
        log.error("the record of a managed ledger cannot be read", key=managed_ledger.key, reason=str(corrupt))
        return None
    if not record.sealed or record.is_deleting:
        return None
    return LedgerList([info for info in record.ledgers if info.entries], record.trimmed)


def is_drained(sealed: LedgerList, cursor: Record | None) -> bool:
    """Return whether a cursor's record says that everything in a sealed segment is acknowledged."""
    if cursor is None:
        return False
    try:
        _identity, acknowledged = decode(cursor.value, sealed.next_after)
    except CursorCorrupt as corrupt:
        log.warning("a cursor cannot be read", key=cursor.key, reason=str(corrupt))
        return False
    return sealed.next_after(acknowledged.mark_delete) > sealed.last()


async def wait_sealed(watch: KeyWatch) -> LedgerList:
    """Wait until the watched record of a managed ledger says that it is sealed, and return its ledgers."""
    while True:
        sealed = sealed_ledgers(await watch.next())
        if sealed is not None:
            return sealed


async def follow_drained(
    name: TopicName, subscription: str, tell: Callable[[bool], None], *, metadata: MetadataStore
) -> None:
    """Call `tell` with whether the segment `name` is drained, at first and at each change, until cancelled."""
    async with metadata.watch_key(record_key(str(name))) as ledgers:
        sealed = sealed_ledgers(await ledgers.next())
        if sealed is None:
            # Its producers are still moving to its children.
            tell(False)
            sealed = await wait_sealed(ledgers)
    async with metadata.watch_key(cursor_key(str(name), subscription)) as cursors:
        while True:
            tell(is_drained(sealed, await cursors.next()))
