"""Records of ledgers that lost entries: kept until the ledger goes, and refused to a stale recoverer."""

import pytest

from storage.damages import Damages, LedgerDamage
from storage.errors import JournalContended
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Check

JOURNAL = "/journals/broker-1"


async def test_every_finding_is_kept_until_its_ledger_goes() -> None:
    """C9, E16: also with more findings than one change set may have on etcd."""
    metadata = MemoryStore()
    damages = Damages(metadata)
    found = {ledger: LedgerDamage(ledger * 10, f"ledger {ledger}") for ledger in range(100)}
    under = Check(JOURNAL, await metadata.put(JOURNAL, b"1", expected=ABSENT))
    await damages.note(found, broker_id="broker-1", under=under)
    await damages.note(found, broker_id="broker-1", under=under)
    assert [await damages.of(ledger) for ledger in range(101)] == [*found.values(), None]
    for ledger in range(101):
        await damages.forget(ledger)
    assert [record.key for record in await metadata.scan("/", "0")] == [JOURNAL]


async def test_a_stale_recoverer_records_nothing() -> None:
    """C9: another one has taken over the journal since, so what it read may have been half removed."""
    metadata = MemoryStore()
    damages = Damages(metadata)
    version = await metadata.put(JOURNAL, b"1", expected=ABSENT)
    under = Check(JOURNAL, version)
    await damages.note({1: LedgerDamage(5, "found in time")}, broker_id="broker-1", under=under)
    await metadata.put(JOURNAL, b"2", expected=version)
    with pytest.raises(JournalContended):
        await damages.note({1: LedgerDamage(0, "late"), 2: LedgerDamage(0, "late")}, broker_id="broker-1", under=under)
    assert await damages.of(1) == LedgerDamage(5, "found in time")
    assert await damages.of(2) is None
