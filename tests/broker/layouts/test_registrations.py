"""The records of registrations, and who may write them."""

import pytest

from broker.layouts.registrations import RECORDS_AT_ONCE, GroupId, Registrations
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Check, Conflict
from tests.support.rooms import TOPIC

GROUP = GroupId(TOPIC, "s")


async def test_only_the_controller_writes_registrations() -> None:
    """D4: a former controller neither adds nor removes any."""
    store = MemoryStore()
    claim = Check("/controller", await store.put("/controller", b"mine"))
    registrations = Registrations(store)
    shares = {f"c{number}": frozenset({number}) for number in range(2 * RECORDS_AT_ONCE + 1)}
    await registrations.write(GROUP, claim, shares)
    assert await registrations.load() == {GROUP: shares}
    await store.put("/controller", b"another's")
    for changed, gone in (({"c0": frozenset({7})}, []), ({}, ["c0"])):
        with pytest.raises(Conflict):
            await registrations.write(GROUP, claim, changed, gone)
    assert await registrations.load(TOPIC) == {GROUP: shares}
